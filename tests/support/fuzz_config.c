/* fuzz_config.c - a libFuzzer target: any bytes as a configuration, loaded and resolved. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "config_fake.h"

/*
 * Not part of the build. To run it, in the root of the tree:
 *   clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -I. -Iinclude -Itests/support \
 *       tests/support/fuzz_config.c config/[a-z]*.c core/error.c -lyaml -o fuzz_config
 *   mkdir corpus && cp config/examples/[a-z]*.yaml corpus && ./fuzz_config -max_len=4096 corpus
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A message is one line, and says where. */
static void check_message(const dl_error_t *err) {
    int line, column;
    if (sscanf(err->message, "t:%d:%d: ", &line, &column) != 2 || line < 1 || column < 1) {
        abort();
    }
    for (const char *c = err->message; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dli_config_t *config = NULL;
    dli_values_t driver_values, core_values;
    const char *backend, *driver;
    dl_error_t err;
    if (fake_load((const char *)data, size, &config, &err) != DL_OK) {
        check_message(&err);
    }
    for (size_t i = 0; config != NULL && dli_config_backend_at(config, i, &backend, &driver); i++) {
        int compiled_in, known;
        const dl_option_t *options = fake_options_of(driver, &compiled_in, &known);
        if (dli_config_resolve(config, backend, options, &driver_values, fake_core, &core_values, &err) !=
                DL_OK &&
            strncmp(err.message, "<default>", 9) == 0) {
            abort();
        }
        dli_values_free(&driver_values);
        dli_values_free(&core_values);
    }
    dli_config_free(config);
    (void)dli_config_resolve_mapping((const char *)data, size, "t", fake_store, &driver_values, fake_core,
                                     &core_values, &err);
    dli_values_free(&driver_values);
    dli_values_free(&core_values);
    return 0;
}
