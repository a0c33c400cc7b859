/* Passes of a simple diffusion layer over all rows, for float32 on a CPU. The formula is that of
   `difformer.nn.conv`, which is the reference; here q, k, v and their gradients exist
   for BLOCK rows at a time, in the cache.

   Rows are cut into chunks by their number and length alone. A chunk's sums go into its own part of `parts`, and
   parts are added up in their order: threads change nothing, not even rounding. */

#include "product.h"

#include "pass.h"

#include "tail.h"

#include "gram.h"

#include "rows.h"

#include "pairs.h"

/* ------------------------------------------------------------------------------------------------------------- passes */

/* Σ k zᵀ, κ = Σ k, Σ z. No key map: k = z as it is, and the first of them is the Gram matrix. */
INLINE void sum_rows(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    const size width = padded(c), wide = padded(d);
    float *outer = taken(&part, c * wide), *keys = taken(&part, width), *states = taken(&part, wide);
    float *z_room = taken(&room, BLOCK * wide), *k_room = taken(&room, BLOCK * width), norm[BLOCK];
    for (size i = first; i < last; i += BLOCK) {
        const size rows = least(BLOCK, last - i);
        const float *z = block_of(p->z, i, rows, d, z_room), *k = z;
        if (p->key_map) {
            unit_block(rows, c, d, z, p->key_map, p->key_bias, k_room, norm);
            k = k_room;
            add_rows(rows, width, k, 0, keys);
        }
        product(c, wide, rows, k, 1, width, z, wide, outer, wide, outer, wide);
        add_rows(rows, wide, z, 0, states);
    }
}

/* x = a z + b (ν + Mᵀq) / r + c Σ_j s_ij v_j + s z⁰, r = count + κᵀq, and y = tail(x). No query map: q = z.

   Values v = W z + b are never written down: Σ_j s_ij v_j = W Σ_j s_ij z_j + b Σ_j s_ij. */
INLINE void answer_rows(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    const size width = padded(c), wide = padded(d);
    float *z_room = taken(&room, BLOCK * wide), *q_room = taken(&room, BLOCK * width);
    float *x = taken(&room, BLOCK * width), *around = taken(&room, BLOCK * wide), norm[BLOCK];
    const float state = (float)p->state, from_source = (float)p->from_source, floor = (float)p->floor;
    const float observed = (float)p->observed;
    for (size i = first; i < last; i += BLOCK) {
        const size rows = least(BLOCK, last - i);
        const float *z = block_of(p->z, i, rows, d, z_room), *q = z;
        if (p->query) {
            unit_block(rows, c, d, z, p->query, p->query_bias, q_room, norm);
            q = q_room;
        }
        product(rows, width, c, q, width, 1, p->outer, width, p->values, 0, x, width);
        for (size r = 0; r < rows; r++) {
            float *row = x + r * width, total = (float)p->count + inner_of(c, q + r * width, p->keys);
            total = fabsf(total) < floor ? floor : total;
            if (p->total) p->total[i + r] = total;
            const float weight = (float)p->latent / total;
            if (p->state != 0) {
                const float *own = z + r * width;
#pragma omp simd
                for (size j = 0; j < c; j++) row[j] = weight * row[j] + state * own[j];
            } else {
#pragma omp simd
                for (size j = 0; j < c; j++) row[j] *= weight;
            }
            if (p->source) {
                const float *given = p->source + (i + r) * c;
#pragma omp simd
                for (size j = 0; j < c; j++) row[j] += from_source * given[j];
            }
            if (p->crow && !p->value) gather(d, p, i + r, p->z, observed, row);
            if (p->crow && p->value) {
                memset(around + r * wide, 0, wide * sizeof(float));
                const float degree = observed * gather(d, p, i + r, p->z, observed, around + r * wide);
#pragma omp simd
                for (size j = 0; j < c; j++) row[j] += degree * p->value_bias[j];
            }
        }
        if (p->crow && p->value) product(rows, width, d, around, wide, 1, p->value, width, x, width, x, width);
        for (size r = 0; r < rows; r++) tail_forward(p, i + r, c, x + r * width);
    }
}

/* With G = ∂x from the tail, A = b G / r and D = (Aᵀν + qᵀ M A) / r:

       ∂q = M A - D κ,   ∂M = Σ q Aᵀ,   ∂κ = -Σ D q,   ∂ν = Σ A,   ∂count = -Σ D,   ∂z = a G + the way through q. */
INLINE void pull_answers(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    const size width = padded(c), wide = padded(d);
    float *w_grad = taken(&part, width), *b_grad = taken(&part, width), *outer = taken(&part, c * width);
    float *keys = taken(&part, width), *values = taken(&part, width), *count = taken(&part, LANES);
    float *map = taken(&part, c * wide), *bias = taken(&part, width);
    float *z_room = taken(&room, BLOCK * wide), *q_room = taken(&room, BLOCK * width);
    float *a = taken(&room, BLOCK * width), *q_grad = taken(&room, BLOCK * width);
    float *z_grad = taken(&room, BLOCK * wide), norm[BLOCK], inner[BLOCK];
    const float state = (float)p->state, floor = (float)p->floor;
    for (size i = first; i < last; i += BLOCK) {
        const size rows = least(BLOCK, last - i);
        const float *z = block_of(p->z, i, rows, d, z_room), *q = z;
        for (size r = 0; r < rows; r++) {
            float *grad = p->x_grad + (i + r) * c, *row = a + r * width, *to = z_grad + r * wide;
            tail_backward(p, i + r, c, grad, w_grad, b_grad);
            const float weight = (float)p->latent / p->total[i + r];
#pragma omp simd
            for (size j = 0; j < c; j++) row[j] = weight * grad[j];
            memset(row + c, 0, (width - c) * sizeof(float));
            if (p->state != 0) {
#pragma omp simd
                for (size j = 0; j < d; j++) to[j] = state * grad[j];
                memset(to + d, 0, (wide - d) * sizeof(float));
            } else
                memset(to, 0, wide * sizeof(float));
        }
        if (p->query) {
            unit_block(rows, c, d, z, p->query, p->query_bias, q_room, norm);
            q = q_room;
        }
        product(rows, width, c, a, width, 1, p->outer_back, width, 0, 0, q_grad, width);
        for (size r = 0; r < rows; r++) {
            float *row = q_grad + r * width;
            const float total = p->total[i + r];
            const float both = (inner_of(c, row, q + r * width) + inner_of(c, a + r * width, p->values)) / total;
            inner[r] = total == floor ? 0 : -both; /* a total that was clamped depends on nothing */
            count[0] += inner[r];
#pragma omp simd
            for (size j = 0; j < c; j++) row[j] += inner[r] * p->keys[j];
        }
        product(c, width, rows, q, 1, width, a, width, outer, width, outer, width);
        add_rows(rows, width, q, inner, keys);
        add_rows(rows, width, a, 0, values);
        if (p->query) {
            pull_unit(rows, c, q, norm, q_grad);
            pull_map(rows, c, d, q_grad, z, p->query_back, map, bias, z_grad);
        } else {
#pragma omp simd
            for (size j = 0; j < rows * wide; j++) z_grad[j] += q_grad[j];
        }
        for (size r = 0; r < rows; r++) memcpy(p->z_grad + (i + r) * d, z_grad + r * wide, d * sizeof(float));
    }
}

/* With the gradients of M, κ and ν, G = ∂x, and ∂M v + ∂κ as a map `outer_back` of z with bias `keys`:

       ∂k = ∂M v + ∂κ,   ∂v = ∂Mᵀk + ∂ν + c SᵀG,   ∂z += the ways through k and v.

   Without a key map, `outer` is what the Gram matrix passes on, and ∂z += ∂v. */
INLINE void pull_keys(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    const size width = padded(c), wide = padded(d);
    float *k_map = taken(&part, c * wide), *k_bias = taken(&part, width);
    float *v_map = taken(&part, c * wide), *v_bias = taken(&part, width);
    float *z_room = taken(&room, BLOCK * wide), *k_room = taken(&room, BLOCK * width);
    float *k_grad = taken(&room, BLOCK * width), *v_grad = taken(&room, BLOCK * width);
    float *z_grad = taken(&room, BLOCK * wide), norm[BLOCK];
    for (size i = first; i < last; i += BLOCK) {
        const size rows = least(BLOCK, last - i);
        const float *z = block_of(p->z, i, rows, d, z_room), *k = z;
        for (size r = 0; r < rows; r++) {
            memcpy(z_grad + r * wide, p->z_grad + (i + r) * d, d * sizeof(float));
            memset(z_grad + r * wide + d, 0, (wide - d) * sizeof(float));
        }
        if (p->key_map) {
            unit_block(rows, c, d, z, p->key_map, p->key_bias, k_room, norm);
            k = k_room;
            product(rows, width, d, z, wide, 1, p->outer_back, width, p->keys, 0, k_grad, width);
            pull_unit(rows, c, k, norm, k_grad);
            pull_map(rows, c, d, k_grad, z, p->key_back, k_map, k_bias, z_grad);
        }
        product(rows, width, c, k, width, 1, p->outer, width, p->values, 0, v_grad, width);
        for (size r = 0; r < rows && p->crow; r++)
            gather(c, p, i + r, p->x_grad, (float)p->observed, v_grad + r * width);
        if (p->value_back)
            pull_map(rows, c, d, v_grad, z, p->value_back, v_map, v_bias, z_grad);
        else {
#pragma omp simd
            for (size j = 0; j < rows * wide; j++) z_grad[j] += v_grad[j];
        }
        for (size r = 0; r < rows; r++) memcpy(p->z_grad + (i + r) * d, z_grad + r * wide, d * sizeof(float));
    }
}

/* y = tail(z + shift), for rows that no step has gone before. */
INLINE void finish_rows(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    for (size i = first; i < last; i++) {
        memcpy(room, p->z + i * c, c * sizeof(float));
        for (size j = 0; j < c && p->shift; j++) room[j] += p->shift[j];
        tail_forward(p, i, c, room);
    }
}

/* The gradient of z, and of w, b and shift. */
INLINE void pull_finish(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    const size width = padded(c);
    float *w_grad = taken(&part, width), *b_grad = taken(&part, width), *shift = taken(&part, width);
    for (size i = first; i < last; i++) {
        tail_backward(p, i, c, p->x_grad + i * c, w_grad, b_grad);
        for (size j = 0; j < c; j++) shift[j] += p->x_grad[i * c + j];
    }
}

/* out = a out + c S z. */
INLINE void multiply_rows(const pass *p, size first, size last, float *part, float *room, size c, size d) {
    for (size i = first; i < last; i++) {
        float *row = p->out + i * c;
        for (size j = 0; j < c; j++) row[j] = p->state != 0 ? (float)p->state * row[j] : 0;
        gather(c, p, i, p->z, (float)p->observed, row);
    }
}

/* ------------------------------------------------------------------------------------------------------------ threads */

typedef void work(const pass *, size, size, float *, float *);

static int for_chunks(const pass *p, work *one) {
    const size chunks = (p->rows + p->chunk - 1) / p->chunk, room = 5 * BLOCK * (padded(p->before) + padded(p->after));
    int failed = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)p->threads) if (p->threads > 1) reduction(| : failed)
    for (size i = 0; i < chunks; i++) {
        float *space = aligned_alloc(64, room * sizeof(float)), *part = p->parts ? p->parts + i * p->part : 0;
        if (space) {
            if (part) memset(part, 0, p->part * sizeof(float));
            one(p, i * p->chunk, least(p->rows, (i + 1) * p->chunk), part, space);
        } else
            failed = 1;
        free(space);
    }
    if (p->parts && !failed) /* into the first one, in order */
        for (size i = 1; i < chunks; i++) add_rows(1, p->part, p->parts + i * p->part, 0, p->parts);
    return failed;
}

/* Every pass, compiled once for the widths that are met most and once for all others; 0 if it went well. */
#define PASS(name)                                                                                                     \
    static void name##_of(const pass *p, size first, size last, float *part, float *room) {                            \
        if (p->after == 64 && p->before == 64)                                                                         \
            name(p, first, last, part, room, 64, 64);                                                                  \
        else                                                                                                           \
            name(p, first, last, part, room, p->after, p->before);                                                     \
    }                                                                                                                  \
    int difformer_##name(const pass *p) { return for_chunks(p, name##_of); }

PASS(sum_rows)
PASS(answer_rows)
PASS(pull_answers)
PASS(pull_keys)
PASS(finish_rows)
PASS(pull_finish)
PASS(multiply_rows)
