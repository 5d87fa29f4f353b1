/*
 * Hedgerow's key-value SSD in software, after the SNIA KV Storage API v1.1.
 *
 * docs/kvssd.md says how programs are compiled with it, where it differs from the standard, and what survives a crash.
 *
 * Handles. A handle is not an address. One that is null, was closed or was never given is refused with a code by every
 * function, also while another thread closes it. Handles are given once in the life of a process. They mean nothing
 * in another process, and none may be used after fork() in the child.
 *
 * Pointers. A null pointer where something must be is KVS_ERR_PARAM_INVALID, and so is one that is not aligned for its
 * type. Everything that a pointer leads to belongs to the caller, before a function and after it; a function reads or
 * fills it while it runs, and keeps no pointer. The functions whose names end with _async are the exception: see there.
 * No function gives memory that must be freed. Memory that a pointer leads to must be as long as is said with it; that
 * is the one thing that cannot be checked.
 *
 * Threads. Every function may be called by any thread at any time, also by several for one device. Threads do not wait
 * for each other, but for the device, which carries commands out one after another. Each pair is stored, read and
 * deleted as a whole.
 *
 * Results. A function that returns something else than KVS_SUCCESS changed nothing on the device, but where it says so.
 * What it gives back then is not set, but where it says so.
 */
#ifndef HEDGEROW_KVSSD_H
#define HEDGEROW_KVSSD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result codes, by the standard's numbers. 32 bits, whatever a compiler makes of enums. */
typedef uint32_t kvs_result;
enum {
    KVS_SUCCESS = 0x00,
    KVS_ERR_BUFFER_SMALL = 0x01,             /* the buffer is too short; what is needed is said */
    KVS_ERR_DEV_CAPACITY = 0x02,             /* the device is full */
    KVS_ERR_DEV_NOT_EXIST = 0x03,            /* there is no such file, or no device in it */
    KVS_ERR_KS_CAPACITY = 0x04,              /* the key space is full, or there are 15 */
    KVS_ERR_KS_EXIST = 0x05,                 /* there is a key space of this name */
    KVS_ERR_KS_INDEX = 0x06,                 /* an index of 0, or behind the last key space */
    KVS_ERR_KS_NAME = 0x07,                  /* a name of no bytes, or of more than 255 */
    KVS_ERR_KS_NOT_EXIST = 0x08,             /* there is no such key space */
    KVS_ERR_KS_NOT_OPEN = 0x09,              /* the handle is of no open key space */
    KVS_ERR_KS_OPEN = 0x0A,                  /* the key space is open through this device handle */
    KVS_ERR_ITERATOR_FILTER_INVALID = 0x0B,  /* never: any mask will do */
    KVS_ERR_ITERATOR_MAX = 0x0C,             /* 16 iterators are open */
    KVS_ERR_ITERATOR_NOT_EXIST = 0x0D,       /* there is no such iterator of this key space */
    KVS_ERR_ITERATOR_OPEN = 0x0E,            /* one of the same keys and content is open */
    KVS_ERR_KEY_LENGTH_INVALID = 0x0F,       /* a key of no bytes, or of more than 255 */
    KVS_ERR_KEY_NOT_EXIST = 0x10,            /* there is no such pair */
    KVS_ERR_OPTION_INVALID = 0x11,           /* an option has a number that is none */
    KVS_ERR_PARAM_INVALID = 0x12,            /* null where something must be, among others */
    KVS_ERR_SYS_IO = 0x13,                   /* the medium, or this library, failed */
    KVS_ERR_VALUE_LENGTH_INVALID = 0x14,     /* the value is too long, or would be */
    KVS_ERR_VALUE_OFFSET_INVALID = 0x15,     /* at or behind the end; of a store, not 0 */
    KVS_ERR_VALUE_OFFSET_MISALIGNED = 0x16,  /* never: any offset will do */
    KVS_ERR_VALUE_UPDATE_NOT_ALLOWED = 0x17, /* there is such a pair, and it must not be overwritten */
    KVS_ERR_DEV_NOT_OPENED = 0x18            /* the handle is of no open device, or it failed before */
};

/* Open devices and key spaces. Null is none. */
typedef const struct hr_device *kvs_device_handle;
typedef const struct hr_key_space *kvs_key_space_handle;
/* An iterator of a key space. 0 is none. */
typedef uint32_t kvs_iterator_handle;

/* A key: 1 to 255 bytes, any bytes. */
typedef struct {
    const void *key;
    uint16_t length;
} kvs_key;

/*
 * A value. Of a store: `length` bytes at `value`; `offset` is 0. Of a retrieve: room for `length` bytes; the value is
 * read from byte `offset` on. After it `length` is the bytes that were read, and `actual_value_size` those of the whole
 * value, whatever the offset was. `value` may be null where `length` is 0.
 */
typedef struct {
    void *value;
    uint32_t length;
    uint32_t actual_value_size;
    uint32_t offset;
} kvs_value;

/* A device. */
typedef struct {
    uint64_t capacity;                  /* bytes that pairs may take, with what the device adds to each */
    uint64_t unalloc_capacity;          /* of them those that are free */
    uint32_t max_value_len;             /* 2 MiB, of small devices less */
    uint32_t max_key_len;               /* 255 */
    uint32_t optimal_value_len;         /* a page */
    uint32_t optimal_value_granularity; /* values take multiples of this */
} kvs_device;

/*
 * The name of a key space: 1 to 255 bytes, any bytes. A zero at its end, if `name_len` counts it, is part of it. Where a
 * name is given back, `name` is room for `name_len` bytes, and `name_len` those of the name afterwards; if they are more
 * than there is room for that is KVS_ERR_BUFFER_SMALL, and `name` is as it was.
 */
typedef struct {
    uint32_t name_len;
    char *name;
} kvs_key_space_name;

/* A key space. `name` may be null: the name is not asked for then. */
typedef struct {
    bool opened;              /* true */
    uint64_t capacity;        /* most bytes of keys and values; 0 is no limit */
    uint64_t free_size;       /* those that are left; without a limit those of the device */
    uint64_t count;           /* pairs */
    kvs_key_space_name *name; /* room for the name, or null */
} kvs_key_space;

/* How keys are ordered. */
enum { KVS_KEY_ORDER_NONE = 0 };
typedef struct {
    uint32_t ordering; /* KVS_KEY_ORDER_NONE; anything else is KVS_ERR_OPTION_INVALID */
} kvs_option_key_space;

/* What must be there for a pair to be stored. */
enum {
    KVS_STORE_POST = 0,        /* anything or nothing */
    KVS_STORE_UPDATE_ONLY = 1, /* the pair; else KVS_ERR_KEY_NOT_EXIST */
    KVS_STORE_NOOVERWRITE = 2, /* no pair; else KVS_ERR_VALUE_UPDATE_NOT_ALLOWED */
    KVS_STORE_APPEND = 3       /* anything or nothing: the value goes behind what is there */
};
typedef struct {
    uint32_t st_type; /* KVS_STORE_... */
} kvs_option_store;

typedef struct {
    bool kvs_retrieve_delete; /* the pair is deleted in the same step, but not with KVS_ERR_BUFFER_SMALL */
} kvs_option_retrieve;

typedef struct {
    bool kvs_delete_error; /* no such pair is KVS_ERR_KEY_NOT_EXIST; otherwise it is KVS_SUCCESS */
} kvs_option_delete;

/* What an iterator gives out. */
enum { KVS_ITERATOR_KEY = 0, KVS_ITERATOR_KEY_VALUE = 1 };
typedef struct {
    uint32_t iter_type; /* KVS_ITERATOR_... */
} kvs_option_iterator;

/*
 * Selects the keys whose first four bytes, where `bitmask` has ones, are those of `bit_pattern`. Any mask will do; of all
 * zeros selects every key. A shorter key is filled up with zeros.
 */
typedef struct {
    uint8_t bitmask[4];
    uint8_t bit_pattern[4];
} kvs_key_group_filter;

/*
 * Entries of an iterator. `it_list` is room for `size` bytes; afterwards `size` is the bytes that were filled. An entry is,
 * without padding: the bytes of the key in 4 bytes, least first; the key; and of an iterator over keys and values the
 * bytes of the value in 4 bytes, least first, and the value.
 */
typedef struct {
    uint32_t num_entries; /* that were filled */
    bool end;             /* these were the last */
    uint32_t size;
    uint8_t *it_list;
} kvs_iterator_list;

/*
 * Which keys there are. `result_buffer` is room for `length` bytes, at least one for each 8 keys; afterwards `length` is
 * the bytes that were filled. Bit i % 8 of byte i / 8, from the least on, is key i.
 */
typedef struct {
    uint32_t length;
    uint8_t *result_buffer;
} kvs_exist_list;

/* A pair. */
typedef struct {
    uint16_t key_len;
    uint32_t value_len;
} kvs_kvp_info;

/* --- devices --- */

/*
 * Makes a device that takes at most `bytes` bytes, 1 MiB to 32 TiB, in the file at `path`, which is not there or empty;
 * anything else there is KVS_ERR_PARAM_INVALID, and stays as it is. The device is not open then. Of our own: the standard
 * has drives that are there.
 */
kvs_result hr_format_device(const char *path, uint64_t bytes);

/*
 * Opens a device. `uri` ends with a zero and is the path of a device's file, or "mem:" and a number of bytes as of
 * hr_format_device for a new one in memory, which is gone when it is closed. A file that is open already, in this
 * process or another, is KVS_ERR_SYS_IO. With an error the handle is null.
 */
kvs_result kvs_open_device(const char *uri, kvs_device_handle *dev_hd);

/*
 * The same, and says when a store is done: HR_ACK_BUFFERED, as kvs_open_device has it, when it is whole in the device's
 * buffer, which outlives this process but not the machine; HR_ACK_IMMEDIATE when it is durable.
 */
enum { HR_ACK_BUFFERED = 0, HR_ACK_IMMEDIATE = 1 };
kvs_result hr_open_device(const char *uri, uint32_t ack, kvs_device_handle *dev_hd);

/*
 * Closes a device, its key spaces and their iterators. From the begin on their handles lead nowhere. Commands that were
 * started are carried out, or answered with KVS_ERR_DEV_NOT_OPENED, and each that has a callback was called back for
 * when this returns. With KVS_SUCCESS everything is durable; with another code but KVS_ERR_PARAM_INVALID the device is
 * closed nevertheless. In a callback it is KVS_ERR_PARAM_INVALID, and nothing is closed.
 */
kvs_result kvs_close_device(kvs_device_handle dev_hd);

/* Makes durable what was completed before. */
kvs_result hr_flush_device(kvs_device_handle dev_hd);

kvs_result kvs_get_device_info(kvs_device_handle dev_hd, kvs_device *info);
kvs_result kvs_get_device_capacity(kvs_device_handle dev_hd, uint64_t *capacity);
/* In hundredths of a percent: 0 to 10000. */
kvs_result kvs_get_device_utilization(kvs_device_handle dev_hd, uint32_t *utilization);
kvs_result kvs_get_min_key_length(kvs_device_handle dev_hd, uint32_t *bytes);
kvs_result kvs_get_max_key_length(kvs_device_handle dev_hd, uint32_t *bytes);
kvs_result kvs_get_min_value_length(kvs_device_handle dev_hd, uint32_t *bytes);
kvs_result kvs_get_max_value_length(kvs_device_handle dev_hd, uint32_t *bytes);
kvs_result kvs_get_optimal_value_length(kvs_device_handle dev_hd, uint32_t *bytes);

/* --- key spaces --- */

/* Makes a key space of at most `size` bytes of keys and values; 0 is no limit. `option` may be null. It is not open then. */
kvs_result kvs_create_key_space(kvs_device_handle dev_hd, const kvs_key_space_name *name, uint64_t size,
                                const kvs_option_key_space *option);

/*
 * Deletes a key space: its pairs, one by one, and then its name; if it is open it is closed. After another code than
 * KVS_SUCCESS some of its pairs may be gone.
 */
kvs_result kvs_delete_key_space(kvs_device_handle dev_hd, const kvs_key_space_name *name);

/*
 * Names of key spaces, in the order they were made in, from the `index`th on; 1 is the first, also where there is none.
 * `names` is room for names, `buffer_size` bytes long in all, each with room for its bytes. `ks_cnt` is how many were
 * given; with KVS_ERR_BUFFER_SMALL those before the one whose room is too short.
 */
kvs_result kvs_list_key_spaces(kvs_device_handle dev_hd, uint32_t index, uint32_t buffer_size,
                               kvs_key_space_name *names, uint32_t *ks_cnt);

/* Opens a key space. One handle is for all threads: a second opening is KVS_ERR_KS_OPEN. With an error the handle is null. */
kvs_result kvs_open_key_space(kvs_device_handle dev_hd, const kvs_key_space_name *name, kvs_key_space_handle *ks_hd);

/* Closes a key space and its iterators. Commands that were started go on. */
kvs_result kvs_close_key_space(kvs_key_space_handle ks_hd);

kvs_result kvs_get_key_space_info(kvs_key_space_handle ks_hd, kvs_key_space *info);

/* --- pairs --- */

/* Stores a pair. `option` may be null: KVS_STORE_POST. */
kvs_result kvs_store_kvp(kvs_key_space_handle ks_hd, const kvs_key *key, const kvs_value *value,
                         const kvs_option_store *option);

/*
 * Reads a value. A buffer that is too short gets the beginning, from the offset on, with KVS_ERR_BUFFER_SMALL; `length` and
 * `actual_value_size` are set then, and nothing is deleted. With any other error the value is as it was. `option` may be
 * null.
 */
kvs_result kvs_retrieve_kvp(kvs_key_space_handle ks_hd, const kvs_key *key, const kvs_option_retrieve *option,
                            kvs_value *value);

/* Deletes a pair. `option` may be null. */
kvs_result kvs_delete_kvp(kvs_key_space_handle ks_hd, const kvs_key *key, const kvs_option_delete *option);

/* Which of 1 to 4096 keys there are. With KVS_ERR_BUFFER_SMALL `length` is the bytes that are needed. */
kvs_result kvs_exist_kv_pairs(kvs_key_space_handle ks_hd, uint32_t key_cnt, const kvs_key *keys, kvs_exist_list *list);

/* How long a pair is. No value is read. */
kvs_result kvs_get_kvp_info(kvs_key_space_handle ks_hd, const kvs_key *key, kvs_kvp_info *info);

/* Deletes the pairs that a filter selects, each whole; a crash, or an error, may leave some. */
kvs_result kvs_delete_key_group(kvs_key_space_handle ks_hd, const kvs_key_group_filter *filter);

/* --- iterators --- */

/*
 * Opens an iterator. What is there from here to the end comes exactly once, in no order; what comes or goes meanwhile may.
 * `option` may be null (keys), `filter` too (all). A device has 16 that are open.
 */
kvs_result kvs_create_iterator(kvs_key_space_handle ks_hd, const kvs_option_iterator *option,
                               const kvs_key_group_filter *filter, kvs_iterator_handle *iter_hd);

/*
 * The next entries, as many as fit. There may be none without its being the end. If not even one fits it is
 * KVS_ERR_BUFFER_SMALL, `size` is the bytes that it needs, and it comes again. With any other error of the device no entry
 * was given: num_entries and size are 0.
 */
kvs_result kvs_iterate_next(kvs_key_space_handle ks_hd, kvs_iterator_handle iter_hd, kvs_iterator_list *list);

/* Closes an iterator. */
kvs_result kvs_delete_iterator(kvs_key_space_handle ks_hd, kvs_iterator_handle iter_hd);

/* --- without waiting --- */

/*
 * The functions below start a command and do not wait for it. With KVS_SUCCESS it was started, and `post_fn` is called for
 * it exactly once, with its result; that may be before the function returns. With another code it was not, and `post_fn`
 * is not called.
 *
 * Until the callback the key, the value and the bytes that they lead to belong to the library: they stay where they are,
 * and nobody else changes them, or reads what is read into. The option is read before the function returns. What
 * `private1` and `private2` lead to the library does not look at.
 *
 * Callbacks come on one thread of the device that is for them alone, one after another, in the order of completion. One
 * may call every function, the ones below too, but kvs_close_device, which is KVS_ERR_PARAM_INVALID there. The context
 * is the library's, and gone when the callback returns. A callback must return: no longjmp, no exception.
 *
 * HR_ASYNC_DEPTH commands of a device may be under way so. With more, a function waits until there is room; in a callback
 * it is KVS_ERR_SYS_IO instead. Closing a device meanwhile is KVS_ERR_DEV_NOT_OPENED.
 */
#define HR_ASYNC_DEPTH 64

/* Which command. */
enum { KVS_CMD_DELETE = 1, KVS_CMD_RETRIEVE = 7, KVS_CMD_STORE = 8 };

typedef struct {
    uint32_t context;           /* KVS_CMD_... */
    kvs_result result;          /* what it came to */
    kvs_key_space_handle ks_hd; /* what follows, as it was given */
    const kvs_key *key;
    kvs_value *value; /* filled as by kvs_retrieve_kvp; null for a delete */
    void *private1;
    void *private2;
} kvs_postprocess_context;

typedef void (*kvs_postprocess_function)(kvs_postprocess_context *context);

kvs_result kvs_store_kvp_async(kvs_key_space_handle ks_hd, const kvs_key *key, kvs_value *value,
                               const kvs_option_store *option, void *private1, void *private2,
                               kvs_postprocess_function post_fn);
kvs_result kvs_retrieve_kvp_async(kvs_key_space_handle ks_hd, const kvs_key *key, const kvs_option_retrieve *option,
                                  kvs_value *value, void *private1, void *private2, kvs_postprocess_function post_fn);
kvs_result kvs_delete_kvp_async(kvs_key_space_handle ks_hd, const kvs_key *key, const kvs_option_delete *option,
                                void *private1, void *private2, kvs_postprocess_function post_fn);

#ifdef __cplusplus
}
#endif

#endif
