/* options_impl.h - between options.c, which reads the command line, and options_worker.c, which reads what --worker says. */
#ifndef SIM_OPTIONS_IMPL_H
#define SIM_OPTIONS_IMPL_H

#include "options.h"

struct sim_parse {
    sim_options_t *o;
    char *error;
    size_t error_size;
};

/* 2, with this line. */
__attribute__((format(printf, 2, 3))) int sim_parse_wrong(struct sim_parse *p, const char *fmt,
                                                          ...);
int sim_parse_real(bt_str_t value, double *value_p);
int sim_parse_worker(struct sim_parse *p, bt_str_t text); /* KEY=VALUE,... */
void sim_parse_worker_help(FILE *out);

#endif
