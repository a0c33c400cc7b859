/* What a pass over the rows is given, and how it reaches the rows that a sparse matrix joins. */

/* One pass over the rows; every pointer may be null where its term is absent. `difformer.kernels.cpu.passes` fills it in, in
   this order. */
typedef struct {
    size rows, before, after;         /* N, d, c: rows, channels before and after the maps */
    size chunk, part, threads;        /* rows of a chunk, floats of its sums, threads */
    size relu, drop, first, key, twin; /* whether there is σ, a mask; its threshold and the two halves of its key */
    const float *z, *source, *grad;   /* states, Z⁰, gradient of what came out */
    float *out, *kept, *inverse;      /* y; x̂, or x where there is no norm; 1 / √(var + ε) */
    float *total, *x_grad, *z_grad, *parts;
    const float *norm, *norm_bias, *shift;                   /* w, b; what is added to x before all else */
    const float *query, *query_bias, *query_back;            /* Wᵀ [d, c], its bias, W [c, d] */
    const float *key_map, *key_bias, *key_back, *value, *value_bias, *value_back;
    const float *outer, *outer_back, *keys, *values;         /* M, Mᵀ, κ, ν, or their gradients */
    const int32_t *crow, *col, *numbers;                     /* sparse rows; numbers of the rows from 1 */
    const float *entry;
    double state, latent, observed, from_source, count, floor, eps, scale;
} pass;

/* out += weight Σ_e s_e x_e over the entries e of sparse row i, for c channels; returns Σ_e s_e. Rows of x lie anywhere
   in memory, so those of the next entries are fetched beforehand, also those of the rows that follow. */
INLINE float gather(size c, const pass *p, size i, const float *x, float weight, float *out) {
    const size first = p->crow[i], last = p->crow[i + 1], end = p->crow[p->rows];
    float degree = 0;
    size j = 0;
    for (; j + STRIP * VECTOR <= c; j += STRIP * VECTOR) {
        vector sum[STRIP];
#pragma GCC unroll 8
        for (int s = 0; s < STRIP; s++) sum[s] = (vector){0};
        for (size e = first; e < last; e++) {
            const float *next = x + p->col[e + AHEAD < end ? e + AHEAD : e] * c + j;
            for (int s = 0; s < STRIP * VECTOR; s += 16) __builtin_prefetch(next + s);
            const vector *from = (const vector *)(x + p->col[e] * c + j);
#pragma GCC unroll 8
            for (int s = 0; s < STRIP; s++) sum[s] += p->entry[e] * from[s];
        }
        vector *to = (vector *)(out + j);
#pragma GCC unroll 8
        for (int s = 0; s < STRIP; s++) to[s] += weight * sum[s];
    }
    float rest[STRIP * VECTOR] = {0};
    for (size e = first; e < last; e++) {
        const float *from = x + p->col[e] * c + j;
        degree += p->entry[e];
        for (size s = 0; s < c - j; s++) rest[s] += p->entry[e] * from[s];
    }
    for (size s = 0; s < c - j; s++) out[j + s] += weight * rest[s];
    return degree;
}
