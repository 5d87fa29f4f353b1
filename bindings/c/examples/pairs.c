/* Makes a device in a file, stores pairs, reads them in three ways, and closes it. */
#include <hedgerow_kvssd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *what, kvs_result result) {
    if (result != KVS_SUCCESS) {
        fprintf(stderr, "%s: code 0x%02x\n", what, (unsigned)result);
        exit(1);
    }
}

static kvs_key key_of(const char *text) {
    kvs_key key = {0};
    key.key = text;
    key.length = (uint16_t)strlen(text);
    return key;
}

static void store(kvs_key_space_handle space, const char *key_text, const char *value_text) {
    char bytes[64];
    kvs_key key = key_of(key_text);
    kvs_value value = {0};
    value.length = (uint32_t)strlen(value_text);
    memcpy(bytes, value_text, value.length);
    value.value = bytes;
    check("store", kvs_store_kvp(space, &key, &value, NULL));
}

static uint32_t number_at(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void iterate(kvs_key_space_handle space) {
    uint8_t room[4096];
    kvs_option_iterator option = {KVS_ITERATOR_KEY_VALUE};
    kvs_key_group_filter fruit = {{0xFF, 0xFF, 0, 0}, {'f', ':', 0, 0}};
    kvs_iterator_handle iterator;
    kvs_iterator_list list = {0};
    check("create an iterator", kvs_create_iterator(space, &option, &fruit, &iterator));
    list.it_list = room;
    while (!list.end) {
        const uint8_t *at = room;
        uint32_t n;
        list.size = sizeof room;
        check("iterate", kvs_iterate_next(space, iterator, &list));
        for (n = 0; n < list.num_entries; n++) {
            uint32_t key_bytes = number_at(at);
            const uint8_t *value = at + 4 + key_bytes;
            uint32_t value_bytes = number_at(value);
            printf("entry %.*s = %.*s\n", (int)key_bytes, (const char *)at + 4, (int)value_bytes,
                   (const char *)value + 4);
            at = value + 4 + value_bytes;
        }
    }
    check("delete the iterator", kvs_delete_iterator(space, iterator));
}

/* On the device's thread for callbacks. The main thread reads what is said here after closing the device. */
static void told(kvs_postprocess_context *context) {
    *(kvs_result *)context->private1 = context->result;
}

int main(int argc, char **argv) {
    char name_bytes[] = "example", room[64];
    kvs_key_space_name name = {7, name_bytes};
    kvs_key apple = key_of("f:apple"), leek = key_of("v:leek");
    kvs_value value = {0}, later = {0};
    kvs_result later_result = KVS_ERR_SYS_IO;
    char later_room[64];
    kvs_device_handle device;
    kvs_key_space_handle space;
    if (argc != 2) {
        fprintf(stderr, "usage: pairs FILE\n");
        return 2;
    }
    check("make a device", hr_format_device(argv[1], 8 << 20));
    check("open it", kvs_open_device(argv[1], &device));
    check("make a key space", kvs_create_key_space(device, &name, 0, NULL));
    check("open it", kvs_open_key_space(device, &name, &space));

    store(space, "f:apple", "red");
    store(space, "f:plum", "blue");
    store(space, "v:leek", "green");

    value.value = room;
    value.length = sizeof room;
    check("retrieve", kvs_retrieve_kvp(space, &apple, NULL, &value));
    printf("apple = %.*s\n", (int)value.length, room);
    iterate(space);

    later.value = later_room;
    later.length = sizeof later_room;
    check("start a retrieve", kvs_retrieve_kvp_async(space, &leek, NULL, &later, &later_result, NULL, told));
    /* Every callback has come when this returns. */
    check("close the device", kvs_close_device(device));
    check("retrieve later", later_result);
    printf("leek = %.*s\n", (int)later.length, later_room);
    return 0;
}
