/* Memory of the devices, and pinned memory of the host: both are this process's own.
 *
 * They come from ranges of addresses that nothing else uses, so an address tells what it is, even
 * after it was freed. What is freed is given out again last, and only where no waiting work touches
 * it: who uses it too long is found out, and does no harm.
 */
#include "cann.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MALLOC_HOST_AT = 4096, COMPLAINTS = 64 };
#define RANGE ((size_t)16 << 30) /* bytes of addresses, not of memory */

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;

static Region *regions; /* the newest first */
static Complaint complaints[COMPLAINTS];
int64_t sim_complaints; /* how many there have been since they were last taken */

void sim_complain(int wrong, int device, int stream, uint64_t bytes) {
    if (sim_complaints < COMPLAINTS)
        complaints[sim_complaints] = (Complaint){wrong, device, sim_device(), stream, bytes};
    sim_complaints++;
}

/* Takes them out; how many were written to `into`, which has room for 64. */
int sim_take_complaints(Complaint *into) {
    pthread_mutex_lock(&sim_lock);
    int count = sim_complaints < COMPLAINTS ? (int)sim_complaints : COMPLAINTS;
    memcpy(into, complaints, count * sizeof *into);
    sim_complaints = 0;
    pthread_mutex_unlock(&sim_lock);
    return count;
}

const Region *sim_region(const void *at) {
    for (Region *r = regions; r; r = r->next)
        if ((char *)at >= r->at && (char *)at < r->at + r->room) return r;
    return NULL;
}

/* A range of addresses for each kind, of which more and more is used. */
static char *reserve(enum Kind kind, size_t room) {
    static char *next[ON_DEVICE + 1], *end[ON_DEVICE + 1];
    if (!next[kind]) {
        void *range = mmap(NULL, RANGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return NULL;
        next[kind] = range;
        end[kind] = next[kind] + RANGE;
    }
    if (room > (size_t)(end[kind] - next[kind])) return NULL;
    next[kind] += room;
    return next[kind] - room;
}

static void *allocate(enum Kind kind, size_t bytes) {
    size_t room = (bytes ? bytes + MALLOC_HOST_AT - 1 : MALLOC_HOST_AT) / MALLOC_HOST_AT * MALLOC_HOST_AT;
    pthread_mutex_lock(&sim_lock);
    Region *found = NULL;
    for (Region *r = regions; r; r = r->next) /* the last that fits: it was freed long ago */
        if (!r->live && r->kind == kind && r->room == room && !sim_in_flight(r->at, r->room)) found = r;
    if (!found) {
        char *at = reserve(kind, room);
        if (at) {
            found = calloc(1, sizeof *found);
            *found = (Region){regions, at, bytes, room, kind, 0, 0};
            regions = found;
        }
    }
    if (found) {
        found->bytes = bytes;
        found->device = kind == ON_DEVICE ? sim_device() : -1;
        found->live = 1;
    }
    pthread_mutex_unlock(&sim_lock);
    return found ? found->at : NULL;
}

static int give_back(void *at) {
    if (!at) return OK;
    pthread_mutex_lock(&sim_lock);
    Region *r = (Region *)sim_region(at);
    int code = r && r->at == at && r->live ? OK : INVALID_PARAM;
    if (code == OK) {
        if (sim_in_flight(r->at, r->bytes)) sim_complain(FREED_IN_FLIGHT, r->device, -1, r->bytes);
        r->live = 0;
    }
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtMalloc(void **at, size_t bytes, int policy) {
    (void)policy;
    if (sim_device() < 0) return CONTEXT_NULL;
    return (*at = allocate(ON_DEVICE, bytes)) ? OK : OUT_OF_MEMORY;
}
int aclrtMallocAlign32(void **at, size_t bytes, int policy) { return aclrtMalloc(at, bytes, policy); }
int aclrtFree(void *at) { return give_back(at); }
int aclrtMallocHost(void **at, size_t bytes) { return (*at = allocate(PINNED, bytes)) ? OK : OUT_OF_MEMORY; }
int aclrtMallocHostWithCfg(void **at, uint64_t bytes, void *config) {
    (void)config;
    return aclrtMallocHost(at, bytes);
}
int aclrtFreeHost(void *at) { return give_back(at); }

/* Pins memory that the host has already; the device sees it at the same address. */
int aclrtHostRegister(void *at, uint64_t bytes, int type, void **on_device) {
    (void)type;
    pthread_mutex_lock(&sim_lock);
    Region *r = calloc(1, sizeof *r);
    *r = (Region){regions, at, bytes, bytes, PINNED, -1, 1};
    regions = r;
    pthread_mutex_unlock(&sim_lock);
    if (on_device) *on_device = at;
    return OK;
}

int aclrtHostUnregister(void *at) {
    pthread_mutex_lock(&sim_lock);
    Region **link = &regions;
    while (*link && (*link)->at != at) link = &(*link)->next;
    Region *r = *link;
    if (r) {
        if (sim_in_flight(r->at, r->bytes)) sim_complain(FREED_IN_FLIGHT, -1, -1, r->bytes);
        *link = r->next; /* the host's own again */
        free(r);
    }
    pthread_mutex_unlock(&sim_lock);
    return r ? OK : INVALID_PARAM;
}

/* aclrtPtrAttributes: where it is (device id; 0 host, 1 device, 2 not known), page size, reserved. */
int aclrtPointerGetAttributes(const void *at, uint32_t *attributes) {
    pthread_mutex_lock(&sim_lock);
    const Region *r = sim_region(at);
    memset(attributes, 0, 7 * sizeof *attributes);
    attributes[0] = r && r->device > 0 ? (uint32_t)r->device : 0;
    attributes[1] = r && r->live ? (r->kind == ON_DEVICE ? 1 : 0) : 2;
    attributes[2] = 4096;
    pthread_mutex_unlock(&sim_lock);
    return OK;
}

int aclrtGetMemInfo(int which, size_t *free_bytes, size_t *total) {
    (void)which;
    *free_bytes = (size_t)8 << 30;
    *total = RANGE;
    return OK;
}
