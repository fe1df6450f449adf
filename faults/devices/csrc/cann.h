/* Simulated CANN: what its parts share, and what the driver calls (sim_...). */
#ifndef KVCONFORM_CANN_H
#define KVCONFORM_CANN_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* Answers, by the numbers of the real acl/error_codes/rt_error_codes.h. */
enum {
    OK = 0,
    INVALID_PARAM = 107000,
    INVALID_DEVICE = 107001,
    CONTEXT_NULL = 107002,
    STREAM_CONTEXT = 107003,
    NOT_SUPPORTED = 207000,
    OUT_OF_MEMORY = 207001,
    COPY_FAILED = 507899,
};

enum { DEVICES = 32 };

/* What was done wrong, for the driver to tell. */
enum { FREED = 1, FREED_IN_FLIGHT, OUT_OF_RANGE, PAGEABLE, CHANGED, FOREIGN_DEVICE };

typedef struct {
    int32_t wrong;  /* one of the above */
    int32_t device; /* of the stream; of the memory where there is no stream; -1: of none */
    int32_t set;    /* the device that the thread has set; -1: none */
    int32_t stream; /* its id; -1: none */
    uint64_t bytes; /* of the copy, or of the memory */
} Complaint;

extern pthread_mutex_t sim_lock; /* around all state; functions marked (locked) want it held */

int sim_device(void);                 /* what this thread has set; -1: none */
int sim_answer(int code, const char *message); /* code; message is the next recent error message */

/* memory.c */
enum Kind { HOST, PINNED, ON_DEVICE };

typedef struct Region {
    struct Region *next;
    char *at;
    size_t bytes, room;
    enum Kind kind;
    int device;
    int live;
} Region;

const Region *sim_region(const void *at); /* (locked) where this is, or was; NULL: the host's own */
void sim_complain(int wrong, int device, int stream, uint64_t bytes); /* (locked) */

/* streams.c */
int sim_in_flight(const void *at, size_t bytes); /* (locked) whether waiting work touches this */

#endif
