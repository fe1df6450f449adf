/* Streams, events and copies.
 *
 * A stream is a queue of work. There is no thread behind it: work runs in the thread that asks for
 * it, waits for it, or drives the simulation, so the same calls always give the same run.
 *
 *   - Work of a stream that is not held runs at once, unless it has to wait for another stream.
 *   - Work of a held stream waits until the driver lets it run, or until a thread of the host waits
 *     for it: a device gets on while the host waits. To ask whether it is done does not move it.
 *   - Within a stream nothing overtakes. Between streams only events give an order.
 *   - An event is a place in a stream: "as far as this". It is done when the stream has got there.
 *
 * From the time at which a copy to the host is asked for until it has run, its destination holds
 * UNFILLED. The source of a copy from the host is looked at twice, then and when it runs.
 */
#include "cann.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t UNFILLED = 0x2FEEDCAB2FEEDCAB;

typedef struct Stream Stream;
typedef void (*Call)(int64_t);

typedef struct Work {
    struct Work *next;
    enum { COPY, SET, WAIT, CALL } what;
    char *to;
    const char *from;
    size_t bytes;
    int value;       /* SET: the byte; COPY: whether it fails */
    uint64_t sum;    /* of what was to be copied from the host; 0: not to be looked at */
    Stream *other;   /* WAIT: the stream that has to get on */
    uint64_t ticket; /* WAIT: as far as this */
    Call call;
    int64_t argument;
} Work;

struct Stream {
    Stream *next; /* of all */
    int id, device, others, held, busy; /* others: not a compute stream */
    uint64_t asked, done; /* work so far; the k-th that was asked for has ticket k */
    uint64_t failed;      /* ticket of what failed, of which the host has not been told; 0: none */
    Work *head, **tail;
};

typedef struct {
    Stream *stream; /* NULL: never recorded */
    uint64_t ticket;
} Event;

static pthread_cond_t got_on = PTHREAD_COND_INITIALIZER;
static Stream *streams, **last_stream = &streams;
static Stream *defaults[DEVICES];
static int newest_first, waiting; /* waiting: work that has not run */
static int held[DEVICES][2];      /* [.][0] compute streams, [.][1] the others */
static int in_use[DEVICES], any_in_use;
static struct { int left, when; } failing[DEVICES];

int64_t sim_copies;   /* asked for */
int64_t sim_deferred; /* of them, those that did not run at once */
int64_t sim_failures; /* and those that failed, as they had been told to */

static Stream *make(int device, int others) {
    static int ids;
    Stream *s = calloc(1, sizeof *s);
    *s = (Stream){.id = ids++, .device = device, .others = others, .held = held[device][others]};
    s->tail = &s->head;
    *last_stream = s;
    last_stream = &s->next;
    return s;
}

static int touches(const Work *w, const void *at, size_t bytes) {
    const char *a = at;
    if (w->what > SET || !bytes) return 0;
    if (a < w->to + w->bytes && w->to < a + bytes) return 1;
    return w->what == COPY && a < w->from + w->bytes && w->from < a + bytes;
}

int sim_in_flight(const void *at, size_t bytes) {
    if (!waiting) return 0;
    for (Stream *s = streams; s; s = s->next)
        for (Work *w = s->head; w; w = w->next)
            if (touches(w, at, bytes)) return 1;
    return 0;
}

static uint64_t sum_of(const char *at, size_t bytes) {
    uint64_t sum = bytes + 1, word;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        memcpy(&word, at, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 32;
    }
    while (bytes--) sum = (sum ^ (unsigned char)*at++) * 0x9E3779B97F4A7C15u;
    return sum ? sum : 1;
}

/* -- running ------------------------------------------------------------------------------------ */

static int is_ready(const Stream *s) {
    return s->head && !s->busy && (s->head->what != WAIT || s->head->other->done >= s->head->ticket);
}

static void run_copy(Stream *s, Work *w) {
    const Region *to = sim_region(w->to), *from = sim_region(w->from);
    if ((to && !to->live) || (from && !from->live)) {
        sim_complain(FREED, s->device, s->id, w->bytes);
        return;
    }
    if (w->value) {
        s->failed = s->done + 1;
        return;
    }
    if (w->sum && w->sum != sum_of(w->from, w->bytes)) sim_complain(CHANGED, s->device, s->id, w->bytes);
    memmove(w->to, w->from, w->bytes);
}

/* (locked) Runs what comes next in a stream, which is ready. */
static void run_next(Stream *s) {
    Work *w = s->head;
    if (w->what == COPY) run_copy(s, w);
    if (w->what == SET) memset(w->to, w->value, w->bytes);
    if (w->what == CALL) { /* it may ask for more work, or wait for the lock of an interpreter */
        s->busy = 1;
        pthread_mutex_unlock(&sim_lock);
        w->call(w->argument);
        pthread_mutex_lock(&sim_lock);
        s->busy = 0;
    }
    s->head = w->next;
    if (!s->head) s->tail = &s->head;
    free(w);
    s->done++;
    waiting--;
    pthread_cond_broadcast(&got_on);
}

/* (locked) Runs all that nothing holds; `rest` less than 0: however much it is. */
static int run_ready(int device, int though_held, int rest) {
    int ran = 0, again = waiting > 0;
    while (again && ran != rest) {
        again = 0;
        Stream *next = NULL;
        for (Stream *s = streams; s; s = s->next) {
            if (!is_ready(s) || (device >= 0 && s->device != device)) continue;
            if (s->held && !(though_held & (s->others ? 2 : 1))) continue;
            next = s;
            if (!newest_first) break;
        }
        if (next) {
            run_next(next);
            ran++;
            again = waiting > 0;
        }
    }
    return ran;
}

/* (locked) Lets a stream get on as far as a ticket, and whatever it waits for. */
static void catch_up(Stream *s, uint64_t ticket) {
    while (s->done < ticket) {
        if (s->busy || !s->head) {
            pthread_cond_wait(&got_on, &sim_lock);
        } else {
            if (s->head->what == WAIT) catch_up(s->head->other, s->head->ticket);
            if (is_ready(s)) run_next(s);
        }
    }
}

/* (locked) The same for the host, which hears of what failed on the way; and others may get on. */
static int wait_for(Stream *s, uint64_t ticket) {
    catch_up(s, ticket);
    run_ready(-1, 0, -1);
    if (!s->failed || s->failed > ticket) return OK;
    s->failed = 0;
    return sim_answer(COPY_FAILED, "a copy failed");
}

/* -- asking ------------------------------------------------------------------------------------- */

/* (locked) The stream behind a handle; NULL is the default one of the thread's device. */
static Stream *stream_of(void *handle) {
    int device = sim_device();
    if (handle) return handle;
    if (device < 0) return NULL;
    if (!defaults[device]) defaults[device] = make(device, 0);
    return defaults[device];
}

/* (locked) Whether a thread may use a stream: it has to have set its device.
 *
 * torch_npu sets device 0 where a thread has set none; so it is told, too, who uses a device that
 * nobody has.
 */
static int check_device(const Stream *s) {
    if (s && s->device == sim_device() && (in_use[s->device] || !any_in_use)) return OK;
    sim_complain(FOREIGN_DEVICE, s ? s->device : -1, s ? s->id : -1, 0);
    if (s && s->device == sim_device()) return OK;
    return s ? sim_answer(STREAM_CONTEXT, "the stream is not of the device that the thread has set")
             : sim_answer(CONTEXT_NULL, "the thread has set no device");
}

/* (locked) */
static void ask(Stream *s, Work work) {
    Work *w = malloc(sizeof *w);
    *w = work;
    w->next = NULL;
    *s->tail = w;
    s->tail = &w->next;
    uint64_t ticket = ++s->asked;
    waiting++;
    run_ready(-1, 0, -1);
    if (work.what == COPY) {
        sim_copies++;
        sim_deferred += s->done < ticket;
    }
}

/* (locked) One side of a copy: whether it lies inside memory of the right kind, and may be used. */
static int check_side(const Stream *s, const void *at, size_t bytes, int on_device, int later) {
    const Region *r = sim_region(at);
    int device = s ? s->device : sim_device(), id = s ? s->id : -1, wrong = 0;
    if (r && !r->live) wrong = FREED;
    else if (r && (char *)at + bytes > r->at + r->bytes) wrong = OUT_OF_RANGE;
    else if (on_device && !(r && r->kind == ON_DEVICE)) wrong = OUT_OF_RANGE;
    else if (!on_device && r && r->kind == ON_DEVICE) wrong = OUT_OF_RANGE;
    else if (!on_device && !r && later) wrong = PAGEABLE;
    if (wrong) sim_complain(wrong, device, id, bytes);
    return wrong && wrong != PAGEABLE ? sim_answer(INVALID_PARAM, "a copy is not within live memory") : OK;
}

/* kind: 0 host to host, 1 host to device, 2 device to host, 3 within devices. */
static int check_copy(const Stream *s, void *to, size_t room, const void *from, size_t bytes, int kind) {
    if (kind < 0 || kind > 3 || bytes > room) return INVALID_PARAM;
    int code = check_side(s, to, bytes, kind & 1, s != NULL);
    return code ? code : check_side(s, from, bytes, kind & 2, s != NULL);
}

static int asked_to_fail(int device, int when) {
    if (failing[device].left <= 0 || failing[device].when != when) return 0;
    failing[device].left--;
    sim_failures++;
    return 1;
}

int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind, void *stream) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = check_device(s);
    if (code == OK) code = check_copy(s, to, room, from, bytes, kind);
    if (code == OK && s->others && asked_to_fail(s->device, 1)) code = sim_answer(COPY_FAILED, "a copy failed");
    if (code == OK) {
        Work w = {.what = COPY, .to = to, .from = from, .bytes = bytes};
        w.value = s->others && asked_to_fail(s->device, 2);
        if (kind == 1 && !sim_in_flight(from, bytes)) w.sum = sum_of(from, bytes);
        if (kind == 2 && !sim_in_flight(to, bytes))
            for (size_t i = 0; i < bytes; i += 8) memcpy((char *)to + i, &UNFILLED, bytes - i < 8 ? bytes - i : 8);
        ask(s, w);
    }
    pthread_mutex_unlock(&sim_lock);
    return code;
}

/* Copies at once, and knows of no stream. */
int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind) {
    pthread_mutex_lock(&sim_lock);
    int code = sim_device() < 0 ? check_device(NULL) : check_copy(NULL, to, room, from, bytes, kind);
    if (code == OK) memmove(to, from, bytes);
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtMemset(void *to, size_t room, int value, size_t bytes) {
    if (bytes > room) return INVALID_PARAM;
    memset(to, value, bytes);
    return OK;
}

int aclrtMemsetAsync(void *to, size_t room, int value, size_t bytes, void *stream) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = bytes > room ? INVALID_PARAM : check_device(s);
    if (code == OK) ask(s, (Work){.what = SET, .to = to, .bytes = bytes, .value = value});
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    (void)priority, (void)flags;
    if (sim_device() < 0) return CONTEXT_NULL;
    pthread_mutex_lock(&sim_lock);
    *stream = make(sim_device(), 1);
    pthread_mutex_unlock(&sim_lock);
    return OK;
}
int aclrtCreateStream(void **stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

static int synchronize(void *stream) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = check_device(s);
    if (code == OK) code = wait_for(s, s->asked);
    pthread_mutex_unlock(&sim_lock);
    return code;
}
int aclrtSynchronizeStream(void *stream) { return synchronize(stream); }
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t milliseconds) {
    (void)milliseconds;
    return synchronize(stream);
}
/* It lives on, for events may be in it. */
int aclrtDestroyStream(void *stream) { return synchronize(stream); }
int aclrtDestroyStreamForce(void *stream) { return synchronize(stream); }

int aclrtSynchronizeDevice(void) {
    int code = OK;
    pthread_mutex_lock(&sim_lock);
    if (sim_device() < 0) code = check_device(NULL);
    for (Stream *s = streams; s; s = s->next)
        if (s->device == sim_device()) {
            int one = wait_for(s, s->asked);
            if (one) code = one;
        }
    pthread_mutex_unlock(&sim_lock);
    return code;
}
int aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) {
    (void)milliseconds;
    return aclrtSynchronizeDevice();
}

int aclrtStreamQuery(void *stream, int *status) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = check_device(s);
    if (code == OK) {
        *status = s->done < s->asked; /* 0: complete, 1: not ready */
        if (!*status) code = wait_for(s, s->asked);
    }
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtStreamGetId(void *stream, int32_t *id) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    if (s) *id = s->id;
    pthread_mutex_unlock(&sim_lock);
    return s ? OK : CONTEXT_NULL;
}

/* -- events ------------------------------------------------------------------------------------- */

int aclrtCreateEventExWithFlag(void **event, uint32_t flags) {
    (void)flags;
    *event = calloc(1, sizeof(Event));
    return OK;
}
int aclrtCreateEventWithFlag(void **event, uint32_t flags) { return aclrtCreateEventExWithFlag(event, flags); }
int aclrtCreateEvent(void **event) { return aclrtCreateEventExWithFlag(event, 0); }
int aclrtDestroyEvent(void *event) {
    free(event); /* who waits for it has noted the place */
    return OK;
}
int aclrtResetEvent(void *event, void *stream) {
    (void)event, (void)stream;
    return OK;
}

int aclrtRecordEvent(void *event, void *stream) {
    Event *e = event;
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = check_device(s);
    if (code == OK) *e = (Event){s, s->asked};
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtStreamWaitEvent(void *stream, void *event) {
    Event *e = event;
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = check_device(s);
    if (code == OK && e->stream && e->stream->done < e->ticket)
        ask(s, (Work){.what = WAIT, .other = e->stream, .ticket = e->ticket});
    pthread_mutex_unlock(&sim_lock);
    return code;
}

int aclrtSynchronizeEvent(void *event) {
    Event *e = event;
    pthread_mutex_lock(&sim_lock);
    int code = e->stream ? wait_for(e->stream, e->ticket) : OK;
    pthread_mutex_unlock(&sim_lock);
    return code;
}
int aclrtSynchronizeEventWithTimeout(void *event, int32_t milliseconds) {
    (void)milliseconds;
    return aclrtSynchronizeEvent(event);
}

int aclrtQueryEventStatus(void *event, int *status) {
    Event *e = event;
    int code = OK;
    pthread_mutex_lock(&sim_lock);
    *status = !e->stream || e->stream->done >= e->ticket; /* 1: complete, 0: not ready */
    if (*status && e->stream) code = wait_for(e->stream, e->ticket);
    pthread_mutex_unlock(&sim_lock);
    return code;
}
int aclrtQueryEventWaitStatus(void *event, int *status) { return aclrtQueryEventStatus(event, status); }
int aclrtQueryEvent(void *event, int *status) {
    int code = aclrtQueryEventStatus(event, status);
    *status = !*status; /* the other way round */
    return code;
}

/* No time passes here. */
int aclrtEventElapsedTime(float *milliseconds, void *from, void *to) {
    (void)from, (void)to;
    *milliseconds = 0;
    return OK;
}

/* -- the driver --------------------------------------------------------------------------------- */

/* Work that the driver has a stream do; run by whoever lets the stream get on. */
int sim_call(void *stream, Call call, int64_t argument) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream_of(stream);
    int code = s ? OK : CONTEXT_NULL;
    if (s) ask(s, (Work){.what = CALL, .call = call, .argument = argument});
    pthread_mutex_unlock(&sim_lock);
    return code;
}

/* This one is a compute stream; which they are is for the driver to say. */
void sim_compute(void *stream) {
    pthread_mutex_lock(&sim_lock);
    Stream *s = stream;
    s->others = 0;
    s->held = held[s->device][0];
    pthread_mutex_unlock(&sim_lock);
}

/* The devices from `first` on are in use, and no others; count 0: nobody says. */
void sim_use(int first, int count) {
    pthread_mutex_lock(&sim_lock);
    for (int d = 0; d < DEVICES; d++) in_use[d] = d >= first && d < first + count;
    any_in_use = count > 0;
    pthread_mutex_unlock(&sim_lock);
}

/* From now on, streams of a device (-1: of all) are held, or are not; bits: 1 compute, 2 others. */
void sim_hold(int device, int which, int on) {
    pthread_mutex_lock(&sim_lock);
    for (int d = 0; d < DEVICES; d++)
        for (int others = 0; others < 2; others++)
            if ((device < 0 || device == d) && (which & (1 << others))) held[d][others] = on;
    for (Stream *s = streams; s; s = s->next) s->held = held[s->device][s->others];
    run_ready(-1, 0, -1);
    pthread_mutex_unlock(&sim_lock);
}

/* Streams that are ready get on in the order in which they were made, or the other way round. */
void sim_order(int newest) {
    pthread_mutex_lock(&sim_lock);
    newest_first = newest;
    pthread_mutex_unlock(&sim_lock);
}

/* Runs up to `most` pieces (-1: all) of what waits on a device (-1: on all), held or not. */
int sim_run(int device, int which, int most) {
    pthread_mutex_lock(&sim_lock);
    int ran = run_ready(device, which, most);
    run_ready(-1, 0, -1);
    pthread_mutex_unlock(&sim_lock);
    return ran;
}

/* The next copies on other than compute streams fail; when: 1 at the call, 2 when they run. */
void sim_fail(int device, int copies, int when) {
    pthread_mutex_lock(&sim_lock);
    for (int d = 0; d < DEVICES; d++)
        if (device < 0 || device == d) failing[d].left = copies, failing[d].when = when;
    pthread_mutex_unlock(&sim_lock);
}

/* Work that waits on a device (-1: on all). */
int sim_waiting(int device) {
    int count = 0;
    pthread_mutex_lock(&sim_lock);
    for (Stream *s = streams; s; s = s->next)
        if (device < 0 || s->device == device) count += (int)(s->asked - s->done);
    pthread_mutex_unlock(&sim_lock);
    return count;
}

/* Whether work that waits touches this memory. */
int sim_touched(const void *at, size_t bytes) {
    pthread_mutex_lock(&sim_lock);
    int found = sim_in_flight(at, bytes);
    pthread_mutex_unlock(&sim_lock);
    return found;
}

/* The process that used a device (-1: all) is gone, and its work with it; nobody hears of failures. */
void sim_discard(int device) {
    pthread_mutex_lock(&sim_lock);
    for (Stream *s = streams; s; s = s->next) {
        if (device >= 0 && s->device != device) continue;
        while (s->head && !s->busy) {
            Work *w = s->head;
            s->head = w->next;
            free(w);
            s->done++;
            waiting--;
        }
        if (!s->head) s->tail = &s->head;
        s->failed = 0;
        failing[s->device].left = 0;
    }
    pthread_cond_broadcast(&got_on);
    run_ready(-1, 0, -1);
    pthread_mutex_unlock(&sim_lock);
}
