/* mux.h - requests of all threads on few connections, back to back: replies find theirs by position. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_MUX_H
#define DLI_REDIS_MUX_H

#include <sys/queue.h>

#include "core/backend.h"
#include "drivers/breaker.h"
#include "conn.h"

/*
 * A multiplexer has a few pipes. Each is one connection, dialled when it is needed, whose requests the server
 * carries out in order. The free of a claim that was given up, and whose reply is still to come, goes behind
 * it on the same pipe; nothing has to be hunted.
 *
 *   order      giving up costs a request its place and nothing else: the reply is dropped when it comes.
 *   combining  what begins while somebody writes or reads goes out with the next write.
 *   silence    a pipe whose oldest reply is late dials a successor beside it. It takes over only if the reply
 *              is still missing one round trip after it was ready, or once call_timeout is over for all that
 *              was sent. What had not left goes out there; what had is DL_EUNKNOWN.
 *   kills      if claims had left on a connection that is over, the next free first says CLIENT KILL ID of
 *              it, on whatever connection to the same server: no such claim can come behind its free. Where
 *              the user may not, or the run id is not known, a late claim lasts until its lease ends.
 *
 * Everything is guarded by the core's mutex, which is let go for system calls; who has a pipe then is `busy`,
 * and does what others leave for it meanwhile.
 */

/* ---- where a client says which host and process it is, for people who look at its locks -------------- */

/*
 * A key of the client's own. It is written by claims and renewals, in front of their own command, now and
 * then: so it costs no round trip, and who takes no locks writes nothing. No lock depends on it: whatever the
 * server answers, the claim goes on.
 */
typedef struct dli_label {
    const char *key; /* NULL: there is no label */
    uint64_t due_ns; /* when it is to be said again; UINT64_MAX: this server does not want it */
    bool is_there;   /* the server has said so */
} dli_label_t;

/* It was never said, the server is another one, or no answer came. */
void dli_label_lost(dli_label_t *label);

typedef struct dli_mux_options {
    int64_t idle_timeout_ms, idle_check_ms;
    bool is_quiet;         /* whoever has it tells when the server goes and comes */
    const char *label_key; /* where the server keeps who this client is (dli_label_t); NULL: nowhere */
} dli_mux_options_t;

typedef enum dli_intent {
    DLI_PLAIN,
    DLI_READ,  /* changes nothing: giving it up is DL_EIO, no outcome is unknown */
    DLI_CLAIM, /* if given up after it was sent, its connection may have to be killed */
    DLI_FREE   /* goes behind such kills */
} dli_intent_t;

typedef struct dli_mux dli_mux_t;
typedef struct dli_pipe dli_pipe_t;
typedef struct dli_redis_request dli_redis_request_t;

#define DLI_PIPES_MAX 13
/* Why a claim is refused while so many replies are to come on its pipe. */
#define DLI_PIPE_CLAIMS_MAX 4096

typedef TAILQ_HEAD(dli_redis_queue, dli_redis_request) dli_redis_queue_t;

/* What requests of one kind are. All are called with the mutex held. */
typedef struct dli_redis_kind {
    dli_intent_t intent;
    bool says_label;
    /* Appends its commands. The first one by its script's text, if with_source: those behind it then know it.
     */
    void (*encode)(dli_redis_request_t *request, bool with_source, dli_commands_t *commands);
    /* Reply number `got`, from 1 on. false: this is no answer to that, and nothing on this connection is in
     * its place any more. NULL: the owner looks at what is kept. */
    bool (*replied)(dli_redis_request_t *request, const redisReply *reply);
    /* DL_OK: all replies have come, or those that came in rest_ms. Otherwise why says why there are none, or
     * not all. It may begin it anew, as another kind. */
    void (*ended)(dli_redis_request_t *request, dl_status_t status, const dl_error_t *why);
    /* The server did not know the script. Is there no time to send its text? NULL: there is. */
    bool (*is_too_late)(const dli_redis_request_t *request);
} dli_redis_kind_t;

#define DLI_NO_REST UINT32_MAX /* as rest_ms, from `replied`: the rest says nothing more */

/* In memory of its owner's, from begin to ended or withdraw. */
struct dli_redis_request {
    /* By the owner */
    const dli_redis_kind_t *kind;
    uint32_t count;       /* commands, one at least */
    uint32_t pipe;        /* its number; begin moves a FREE to where its claim was given up */
    uint64_t claim;       /* CLAIM, FREE: of this hold */
    dli_request_t *asked; /* the core's; NULL: it is none of those */
    redisReply **kept;    /* room for the replies, which are the owner's then; NULL: they are not kept */
    /* The multiplexer's */
    TAILQ_ENTRY(dli_redis_request) of_queue;
    uint64_t place;   /* of its slot, once it was sent; before that, of a FREE: behind its claim; or 0 */
    uint64_t sent_ns; /* before that: since when it is to be sent */
    uint32_t got;
    uint32_t rest_ms; /* by the owner: the rest may come so long after it was sent; 0: no bound */
    bool queued, with_source, forgotten; /* the server does not know the script */
    bool leads;                          /* by the owner: its caller asks dli_mux_lead_fds */
    uint32_t slow_ms;                    /* by the owner: the server may wait for so long */
};

/* What the server owes for one request, or for what goes ahead of requests. */
typedef struct dli_slot {
    dli_redis_request_t *request; /* NULL: given up, or it is no request */
    size_t left;                  /* replies */
    uint64_t sent_ns, at;         /* at: bytes of this connection before it */
    enum { DLI_SLOT_REQUEST, DLI_SLOT_LABEL, DLI_SLOT_KILL, DLI_SLOT_PING } kind;
    dli_intent_t intent;
    uint64_t claim; /* or, of a kill, the number of the connection */
    uint32_t slow_ms;
    bool follows; /* the free of a claim that was given up before it; no caller waits for that */
} dli_slot_t;

#define DLI_KILLS_MAX 32

struct dli_pipe {
    dli_mux_t *mux;
    dli_redis_queue_t queue; /* to be sent */
    dli_redis_request_t end; /* of it, while it is refused: what is begun meanwhile is another matter */
    size_t given_up;         /* claims that were sent and withdrawn, whose replies are still to come */
    dli_slot_t *slots;       /* a ring, of a power of two */
    size_t cap;
    uint64_t head, tail; /* numbers of the oldest slot and of the next; a new connection goes on with them */
    bool busy;           /* a thread has it, and looks again before it lets go */
    bool again;
    short revents, next_revents; /* that others saw meanwhile */
    dli_conn_t *conn, *next;     /* next: the successor. A forked child looks at both */
    dli_conn_t *made; /* by who has the pipe: that is being dialled; else only a forked child looks */
    bool ready, next_ready;
    int fd;                      /* of conn, once it is ready */
    bool polled, polled_out;     /* by whoever listens; for room to write, too */
    size_t given;                /* descriptors, to that one */
    size_t unled;                /* requests that are queued or sent, whose callers do not read themselves */
    uint64_t term, late_term;    /* who reads: a caller; whom another found late */
    uint64_t led_ns;             /* since when */
    dli_redis_request_t *leader; /* of that caller, while it is pending */
    bool stalled;                /* who would read found it busy, and looks again after that */
    bool has_rests;              /* some that are sent have rest_ms */
    bool retired;                /* its server was replaced: what is owed comes, and no more is sent */
    bool pinged;                 /* it was idle for long: first an answer, then requests */
    bool met;                    /* a connection was ready once */
    uint64_t written;            /* so many of its bytes were given to the socket, or wait for room there */
    uint64_t used_ns;            /* when something was sent or came last */
    uint64_t heard_ns;           /* when something came last */
    uint64_t trip_ns;            /* the fastest reply's, or the greeting's */
    uint64_t began_ns, next_began_ns; /* dialling */
    uint64_t retry_ns;                /* no successor is dialled before */
    bool wanted;                      /* a connection, although nothing is to be sent on it yet */
    uint64_t replace_ns;              /* once the successor is ready */
    uint64_t watched;                 /* the oldest slot when the successor was dialled; UINT64_MAX: none */
    bool is_probe;
    dli_facts_t facts;   /* of conn */
    dli_commands_t *out; /* its queue, once it is ready */
};

struct dli_mux {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;
    const dli_backend_env_t *core;
    size_t count;
    bool is_quiet;
    /* Optional, with the mutex: from now on requests go to this server. Anything but DL_OK: none do. */
    dl_status_t (*meets)(void *arg, const dli_facts_t *facts, dl_error_t *err);
    void *meets_arg;
    uint64_t idle_check_ns; /* PING one that was idle for so long */
    uint64_t idle_ns;       /* close one that was idle for so long */
    dli_breaker_t breaker;
    dli_label_t label;
    uint64_t made_ns; /* the shortest time that making a connection took; 0: none was made */
    char run_id[41];  /* of the last server; "": not known */
    uint64_t met_ns;  /* when the last of its connections was begun */
    uint64_t told_ns; /* when it was last said that it is another one */
    bool may_not_kill;
    struct {
        int64_t id;
        uint32_t said; /* on these pipes' connections */
    } kills[DLI_KILLS_MAX];
    size_t kill_count;
    uint64_t polled_to_ns;  /* until when, at the longest */
    char polled_run_id[41]; /* run_id, as it was before the poll; used without the mutex */
    uint64_t terms;
    dli_pipe_t pipes[DLI_PIPES_MAX];
};

/* With the mutex of this core. */
void dli_redis_report(const dl_driver_env_t *env, const dli_backend_env_t *core, dl_log_level_t level,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Zeroed before. No I/O. label_key NULL: none. */
dl_status_t dli_mux_open(dli_mux_t *mux, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                         const dli_backend_env_t *core, const dli_mux_options_t *options, size_t pipes,
                         dl_error_t *err);
/* With the mutex: has the server not said yet that this connection is killed? */
bool dli_mux_is_to_kill(const dli_mux_t *mux, int64_t id);
/* Nothing is under way. Safe on a zeroed one. */
void dli_mux_close(dli_mux_t *mux, bool forked);

/* As the ops of dli_backend_t. */
void dli_mux_begin(dli_mux_t *mux, dli_redis_request_t *request);
bool dli_mux_withdraw(dli_mux_t *mux, dli_redis_request_t *request);
bool dli_mux_flush(dli_mux_t *mux);
/* Of the n pipes from `first` on: the one that is wished for (from 0) if it is connected; else one that is,
 * and the wished one is connected where those are busy. With the mutex held. */
size_t dli_mux_choose(dli_mux_t *mux, size_t first, size_t n, size_t wish);
/* As listen_fds and listen. One thread at a time: polled_run_id is for whoever listens. */
size_t dli_mux_listen_fds(dli_mux_t *mux, struct pollfd *fds, uint64_t *until_ns);
void dli_mux_listen(dli_mux_t *mux, const struct pollfd *fds, size_t n);
/* As lead_fds, lead and end_lead. */
int dli_mux_lead_fds(dli_mux_t *mux, dli_redis_request_t *request, struct pollfd *fds, bool late,
                     uint64_t *term, uint64_t *until_ns);
bool dli_mux_lead(dli_mux_t *mux, uint64_t term, const struct pollfd *fds, size_t n);
dli_redis_request_t *dli_mux_end_lead(dli_mux_t *mux, uint64_t term, uint64_t *next);

#endif
