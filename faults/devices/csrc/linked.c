/* What torch_npu is linked against, or looks up, and that does nothing here.
 *
 * Nothing computes: what would launch an operator or a kernel says that it is not supported. The
 * arguments of such functions are left out where C allows it, for they are not looked at.
 */
#include "cann.h"

#include <stdlib.h>
#include <unistd.h>

static __thread int set = -1;
static __thread const char *message = "";
static int contexts[DEVICES];

int sim_device(void) { return set; }
int sim_answer(int code, const char *text) {
    message = text;
    return code;
}
/* The thread has set no device any more: what a test begins with. */
void sim_unset(void) { set = -1; }

const char *aclGetRecentErrMsg(void) {
    const char *text = message;
    message = "";
    return *text ? text : "simulated CANN: not supported";
}

/* -- devices: a thread has none until it sets one ------------------------------------------------ */

int aclrtSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
    set = device;
    return OK;
}
int aclrtGetDevice(int *device) {
    *device = set;
    return set < 0 ? CONTEXT_NULL : OK;
}
int aclrtGetCurrentContext(void **context) {
    *context = set < 0 ? NULL : &contexts[set];
    return set < 0 ? CONTEXT_NULL : OK;
}
int aclrtSetCurrentContext(void *context) { return aclrtSetDevice((int)((int *)context - contexts)); }
int aclrtGetDeviceCount(uint32_t *count) {
    *count = DEVICES;
    return OK;
}
const char *aclrtGetSocName(void) { return "Ascend910B1"; }
int aclrtDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device, (void)peer;
    *can = 1;
    return OK;
}
int aclrtDeviceGetBareTgid(int *id) {
    *id = getpid();
    return OK;
}
int aclGetDeviceCapability(uint32_t device, int which, int64_t *value) {
    (void)device, (void)which;
    *value = 0;
    return OK;
}
static int zero(int which, int64_t *value) {
    (void)which;
    *value = 0;
    return OK;
}
int aclrtGetSysParamOpt(int which, int64_t *value) { return zero(which, value); }
int aclrtCtxGetSysParamOpt(int which, int64_t *value) { return zero(which, value); }

/* -- objects that are made, handed round and thrown away ------------------------------------------ */

#define MADE(name) \
    void *name() { return calloc(1, 64); }
#define THROWN(name) \
    int name(void *object) { \
        free(object); \
        return OK; \
    }
MADE(aclCreateDataBuffer)
THROWN(aclDestroyDataBuffer)
MADE(aclCreateTensorDesc)
THROWN(aclDestroyTensorDesc)
MADE(aclopCreateAttr)
THROWN(aclopDestroyAttr)

/* -- settings without effect --------------------------------------------------------------------- */

#define DONE(name) \
    int name() { return OK; }
DONE(aclInit) DONE(aclFinalize) DONE(aclAppLog)
DONE(aclrtResetDevice) DONE(aclrtDeviceEnablePeerAccess) DONE(aclrtProcessReport)
DONE(aclrtSetOpWaitTimeout) DONE(aclrtSetOpExecuteTimeOut) DONE(aclrtSetDeviceSatMode)
DONE(aclrtSetSysParamOpt) DONE(aclrtCtxSetSysParamOpt)
DONE(aclrtGetLastError) DONE(aclrtPeekAtLastError)
DONE(aclmdlInitDump) DONE(aclmdlSetDump) DONE(aclmdlFinalizeDump)
DONE(aclSetTensorFormat) DONE(aclSetTensorShape) DONE(aclSetTensorPlaceMent) DONE(aclSetTensorDescName)
DONE(aclopSetAttrBool) DONE(aclopSetAttrInt) DONE(aclopSetAttrFloat) DONE(aclopSetAttrString)
DONE(aclopSetAttrDataType) DONE(aclopSetAttrListInt) DONE(aclopSetAttrListFloat)
DONE(aclopSetAttrListBool) DONE(aclopSetAttrListListInt)
DONE(aclSetCompileopt) DONE(aclopSetCompileFlag)
DONE(MsprofRegisterCallback) DONE(MsprofGetHashId) DONE(MsprofReportAdditionalInfo)
DONE(MsprofReportApi) DONE(MsprofReportCompactInfo) DONE(MsprofSysCycleTime)

size_t aclGetCompileoptSize(int which) {
    (void)which;
    return 256;
}
int aclGetCompileopt(int which, char *value, size_t room) {
    (void)which;
    if (room) *value = 0;
    return OK;
}

/* -- not simulated ------------------------------------------------------------------------------- */

#define MISSING(name) \
    int name() { return sim_answer(NOT_SUPPORTED, "simulated CANN: " #name " is not supported"); }
MISSING(aclopCompileAndExecute) MISSING(aclGenGraphAndDumpForOp)
MISSING(aclGetTensorDescDimV2) MISSING(aclGetTensorDescFormat) MISSING(aclGetTensorDescNumDims)
MISSING(aclGetTensorDescType)
MISSING(aclrtBinaryGetFunction) MISSING(aclrtBinaryLoadFromData) MISSING(aclrtGetFunctionAddr)
MISSING(aclrtMallocPhysical) MISSING(aclrtFreePhysical) MISSING(aclrtMapMem) MISSING(aclrtUnmapMem)
MISSING(aclrtReserveMemAddress) MISSING(aclrtReleaseMemAddress)
MISSING(aclrtMemExportToShareableHandle) MISSING(aclrtMemImportFromShareableHandle)
MISSING(aclrtMemSetPidToShareableHandle)
MISSING(rtDevBinaryRegister) MISSING(rtFunctionRegister) MISSING(rtGetC2cCtrlAddr) MISSING(rtKernelLaunch)
