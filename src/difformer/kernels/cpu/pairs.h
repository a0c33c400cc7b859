/* All pairs of g(x) = 1 / (1 + e⁻ˣ), float32, for `difformer.attention.tiles`, whose formulas these are:

       r_i = Σ_j g(q_iᵀk_j),   r_i o_i = Σ_j g(q_iᵀk_j) v_j,   ∂v_j = Σ_i g_ij a_i,
       ∂x_ij = g_ij (1 - g_ij) (a_iᵀv_j - D_i),   ∂q_i = Σ_j ∂x_ij k_j,   ∂k_j = Σ_i ∂x_ij q_i.

   BLOCK × BLOCK scores at a time, in the first level of cache. Channels are multiples of LANES. */

typedef struct {
    size rows, keys, channels, values, chunks, threads; /* n, m, d, c; parts of ∂q that are added up in the end */
    const float *q, *k, *v, *a, *inner;                 /* a_i and D_i */
    float *out, *total, *q_grad, *k_grad, *v_grad;
} pairs;

typedef int32_t integers __attribute__((vector_size(4 * VECTOR), may_alias));

/* e^x to 2 units in the last place: 2ⁿ times a polynomial on [-½ log 2, ½ log 2]; infinite beyond the range of float32. */
INLINE vector exponential(vector x) {
    const vector high = (vector){0} + 88.9f, low = (vector){0} - 86.0f; /* 2ⁿ⁻¹ is a normal number in between */
    const integers above = x > high, below = x < low; /* all bits are set where it holds */
    x = (vector)((above & (integers)high) | (below & (integers)low) | (~(above | below) & (integers)x));
    const vector shifted = x * 1.44269504f + 12582912.0f, whole = shifted - 12582912.0f; /* rounds to an integer */
    const vector f = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vector y = 1.9875691500e-4f * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * (f * f) + f + 1.0f;
    return y * 2.0f * (vector)(((integers)shifted - (0x4B400000 - 126)) << 23); /* a product, so that NaN stays NaN */
}

/* `count` blocks of BLOCK rows of x as columns: ``[count, c, BLOCK]``, with zeros behind the last row. */
static float *turned(const float *x, size rows, size c) {
    const size count = (rows + BLOCK - 1) / BLOCK; /* at least one: Python sees to it */
    float *to = aligned_alloc(64, count * c * BLOCK * sizeof(float));
    if (!to) return 0;
    memset(to + (count - 1) * c * BLOCK, 0, c * BLOCK * sizeof(float));
    for (size i = 0; i < rows; i++)
        for (size j = 0; j < c; j++) to[(i / BLOCK * c + j) * BLOCK + i % BLOCK] = x[i * c + j];
    return to;
}

/* g of BLOCK × BLOCK scores of rows of q with columns k. */
INLINE void exchange(size rows, size d, const float *q, const float *k, float *g) {
    product(rows, BLOCK, d, q, d, 1, k, BLOCK, 0, 0, g, BLOCK);
    for (size i = 0; i < rows * BLOCK; i += VECTOR) {
        vector *x = (vector *)(g + i);
        *x = 1.0f / (1.0f + exponential(-*x));
    }
}

/* out[m, n] += A B. In thousands of terms that are added one after the other, as `product` does, errors add up. */
INLINE void add_product(size m, size n, size depth, const float *a, size row, size column, const float *b, float *out) {
    float sum[BLOCK * LONGEST] __attribute__((aligned(64)));
    product(m, n, depth, a, row, column, b, n, 0, 0, sum, n);
    for (size i = 0; i < m * n; i += VECTOR) *(vector *)(out + i) += *(vector *)(sum + i);
}

INLINE void forward_rows(const pairs *p, const float *k, size i, size d, size c) {
    const size rows = least(BLOCK, p->rows - i);
    float g[BLOCK * BLOCK] __attribute__((aligned(64))), total[BLOCK] = {0}, *out = p->out + i * c;
    memset(out, 0, rows * c * sizeof(float));
    for (size j = 0; j < p->keys; j += BLOCK) {
        const size keys = least(BLOCK, p->keys - j);
        exchange(rows, d, p->q + i * d, k + j * d, g);
        for (size r = 0; r < rows; r++) total[r] += sum_of(keys, g + r * BLOCK);
        add_product(rows, c, keys, g, BLOCK, 1, p->v + j * c, out);
    }
    memcpy(p->total + i, total, rows * sizeof(float));
}

/* ∂k and ∂v of a block of keys, whose columns are `k` and `v`, and their share of ∂q. */
INLINE void backward_keys(const pairs *p, const float *k, const float *v, float *q_grad, size j, size d, size c) {
    const size keys = least(BLOCK, p->keys - j);
    float g[BLOCK * BLOCK] __attribute__((aligned(64))), w[BLOCK * BLOCK] __attribute__((aligned(64)));
    float *k_grad = p->k_grad + j * d, *v_grad = p->v_grad + j * c;
    memset(k_grad, 0, keys * d * sizeof(float));
    memset(v_grad, 0, keys * c * sizeof(float));
    for (size i = 0; i < p->rows; i += BLOCK) {
        const size rows = least(BLOCK, p->rows - i);
        exchange(rows, d, p->q + i * d, k, g);
        add_product(keys, c, rows, g, 1, BLOCK, p->a + i * c, v_grad);
        product(rows, BLOCK, c, p->a + i * c, c, 1, v, BLOCK, 0, 0, w, BLOCK);
        for (size r = 0; r < rows; r++)
            for (size s = 0; s < BLOCK; s += VECTOR) {
                vector *x = (vector *)(w + r * BLOCK + s), y = *(vector *)(g + r * BLOCK + s);
                *x = (*x - p->inner[i + r]) * (y * (1.0f - y));
            }
        add_product(rows, d, keys, w, BLOCK, 1, p->k + j * d, q_grad + i * d);
        add_product(keys, d, rows, w, 1, BLOCK, p->q + i * d, k_grad);
    }
}

/* Compiled once for the width that is met most and once for all others; 0 if it went well. */
int difformer_pairs_forward(const pairs *p) {
    float *k = turned(p->k, p->keys, p->channels);
    if (!k) return 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)p->threads) if (p->threads > 1)
    for (size i = 0; i < p->rows; i += BLOCK) {
        if (p->channels == 64 && p->values == 64)
            forward_rows(p, k, i, 64, 64);
        else
            forward_rows(p, k, i, p->channels, p->values);
    }
    free(k);
    return 0;
}

/* `q_grad` has one part for each chunk of keys, added up in order: threads change nothing, not even rounding. */
int difformer_pairs_backward(const pairs *p) {
    const size d = p->channels, c = p->values, count = p->rows * d;
    const size blocks = (p->keys + BLOCK - 1) / BLOCK;
    float *k = turned(p->k, p->keys, d), *v = turned(p->v, p->keys, c);
    if (k && v) {
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)p->threads) if (p->threads > 1)
        for (size chunk = 0; chunk < p->chunks; chunk++) {
            float *q_grad = p->q_grad + chunk * count;
            memset(q_grad, 0, count * sizeof(float));
            for (size b = chunk * blocks / p->chunks; b < (chunk + 1) * blocks / p->chunks; b++) {
                const size j = b * BLOCK;
                if (d == 64 && c == 64)
                    backward_keys(p, k + j * 64, v + j * 64, q_grad, j, 64, 64);
                else
                    backward_keys(p, k + j * d, v + j * c, q_grad, j, d, c);
            }
        }
        for (size chunk = 1; chunk < p->chunks; chunk++) add_rows(1, count, p->q_grad + chunk * count, 0, p->q_grad);
    }
    free(k);
    free(v);
    return !(k && v);
}
