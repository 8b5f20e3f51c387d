/* syntax.h - what libyaml found wrong, in the words of this library. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_SYNTAX_H
#define DLI_CONFIG_SYNTAX_H

#include <yaml.h>

#include "report.h"

/* After a failed yaml_parser_parse. DL_ECONFIG, DL_ENOMEM. */
dl_status_t dli_syntax_report(const yaml_parser_t *parser, const char *text, size_t len, const char *label,
                              dl_error_t *err);

#endif
