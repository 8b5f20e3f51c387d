/* cpp_hidden_main.cpp - is told of the loss in cpp_hidden.cpp. Exit status 1: it is not. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dlock/dlock.hpp>

void lose_a_lock(const dl::client &client);

int main(int, char **argv) {
    dl::client client(argv[1], "here");
    lose_a_lock(client);
    return dl::take_unlock_error().status == DL_ELOST ? 0 : 1;
}
