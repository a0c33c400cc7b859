/* What follows a diffusion step, row by row, forward and backward:

       y = m ⊙ σ(w x̂ + b),   x̂ = (x - mean x) / √(var x + ε),

   with σ the identity or max(0, ·), and m the mask of `difformer.nn.dropout`, worked out again from its key. */

#define LONGEST 512 /* channels of a row at most */

#define GOLDEN 0x9E3779B1u
#define FIRST 0x7FEB352Du
#define SECOND 0x846CA68Bu

INLINE int32_t hash_of_row(uint32_t row, size key) {
    int32_t s = (int32_t)(row ^ (uint32_t)key);
    s = (int32_t)((uint32_t)(s ^ (s >> 16)) * FIRST);
    return (int32_t)((uint32_t)(s ^ (s >> 15)) * SECOND);
}

/* 1 / (1 - p) where an entry of row i is kept, 0 where it is dropped. */
INLINE void mask_of_row(const pass *p, size i, size c, float *mask) {
    union {
        int32_t h[LONGEST / 2];
        int16_t bits[LONGEST]; /* low half first, as on every machine that torch runs on */
    } drawn;
    const uint32_t row = (p->numbers ? (uint32_t)p->numbers[i] : (uint32_t)(i + 1)) * GOLDEN;
    const uint32_t state = (uint32_t)hash_of_row(row, p->key), factor = (uint32_t)hash_of_row(row, p->twin) | 1u;
    const float scale = (float)p->scale;
    const int32_t first = (int32_t)p->first;
#pragma omp simd
    for (int32_t j = 0; j < (int32_t)(c + 1) / 2; j++) {
        const int32_t h = (int32_t)((state ^ ((uint32_t)(j + 1) * GOLDEN)) * FIRST);
        drawn.h[j] = (int32_t)((uint32_t)(h ^ (h >> 15)) * factor);
    }
#pragma omp simd
    for (int32_t j = 0; j < (int32_t)c; j++) mask[j] = drawn.bits[j] >= first ? scale : 0.0f;
}

/* From row i of x, which is overwritten. */
INLINE void tail_forward(const pass *p, size i, size c, float *x) {
    float *y = p->out + i * c, *kept = p->kept ? p->kept + i * c : 0;
    if (p->norm) {
        const float mean = sum_of(c, x) / (float)c;
#pragma omp simd
        for (size j = 0; j < c; j++) x[j] -= mean;
        const float inverse = 1.0f / sqrtf(inner_of(c, x, x) / (float)c + (float)p->eps);
        if (p->inverse) p->inverse[i] = inverse;
#pragma omp simd
        for (size j = 0; j < c; j++) x[j] *= inverse;
    }
    if (kept) memcpy(kept, x, c * sizeof(float));
    if (p->norm) {
#pragma omp simd
        for (size j = 0; j < c; j++) x[j] = x[j] * p->norm[j] + p->norm_bias[j];
    }
    if (p->relu) {
#pragma omp simd
        for (size j = 0; j < c; j++) x[j] = x[j] < 0 ? 0 : x[j]; /* NaN stays */
    }
    if (p->drop) {
        float mask[LONGEST];
        mask_of_row(p, i, c, mask);
#pragma omp simd
        for (size j = 0; j < c; j++) x[j] *= mask[j];
    }
    memcpy(y, x, c * sizeof(float));
}

/* The gradient of row i of x; what it adds to the gradients of w and b is added to them:

       ∂x = (g - mean(g) - x̂ mean(g x̂)) / √(var x + ε),   g = w ⊙ σ' ⊙ m ⊙ ∂y. */
INLINE void tail_backward(const pass *p, size i, size c, float *x_grad, float *w_grad, float *b_grad) {
    const float *grad = p->grad + i * c, *kept = p->kept ? p->kept + i * c : 0;
    float g[LONGEST];
    memcpy(g, grad, c * sizeof(float));
    if (p->drop) {
        float mask[LONGEST];
        mask_of_row(p, i, c, mask);
#pragma omp simd
        for (size j = 0; j < c; j++) g[j] *= mask[j];
    }
    if (p->relu && p->norm) {
#pragma omp simd
        for (size j = 0; j < c; j++) g[j] = kept[j] * p->norm[j] + p->norm_bias[j] <= 0 ? 0 : g[j];
    } else if (p->relu) {
#pragma omp simd
        for (size j = 0; j < c; j++) g[j] = kept[j] <= 0 ? 0 : g[j];
    }
    if (!p->norm) {
        memcpy(x_grad, g, c * sizeof(float));
        return;
    }
#pragma omp simd
    for (size j = 0; j < c; j++) {
        w_grad[j] += g[j] * kept[j];
        b_grad[j] += g[j];
        g[j] *= p->norm[j];
    }
    const float mean = sum_of(c, g) / (float)c, slope = inner_of(c, g, kept) / (float)c, inverse = p->inverse[i];
#pragma omp simd
    for (size j = 0; j < c; j++) x_grad[j] = (g[j] - mean - kept[j] * slope) * inverse;
}
