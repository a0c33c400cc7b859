/* What the Gram matrix of the states becomes, for queries and keys that are linear in them; see `difformer.kernels.gram`.

   With z̃ = [z, 1], A = [W, b] and G = Σ z̃ z̃ᵀ,

       [U, u] = γ A_qᵀ A_k G + e (G e)ᵀ,   γ = 1 / (‖Q‖ ‖K‖) or 1,   ‖Q‖² = tr(A_q G A_qᵀ).

   Matrices of d + 1 columns, some tens of operations on them: as torch's they take as long as a pass over a small graph. */

#define SMALLEST_SQUARE 1e-24f

typedef struct {
    size channels, scaled;
    const float *outer, *states;                          /* Σ z zᵀ, Σ z, padded */
    const float *query, *query_bias, *key, *key_bias;     /* W [d, d] and b */
    float *kept;                                          /* for the way back: what `parts_of` says */
    float *to_outer, *to_keys, *to_values, *to_count;     /* parts of [U, u], padded */
    const float *outer_grad, *keys_grad, *values_grad, *count_grad;
    float *square, *level;                                /* what G passes on to z: its gradient and the transpose */
    float *query_grad, *query_bias_grad, *key_grad, *key_bias_grad;
    double count;
} gram;

typedef struct {
    float *g, *a_q, *a_k, *of_q, *of_k, *maps, *numbers; /* G, A_q, A_k, A_q G, A_k G, [U, u]; squares and γ */
} known;

INLINE known parts_of(float *kept, size d) {
    const size step = (d + 1) * padded(d + 1);
    return (known){kept, kept + step, kept + 2 * step, kept + 3 * step, kept + 4 * step, kept + 5 * step, kept + 6 * step};
}

/* [main, side; under, corner] as rows of `width`, zero behind the last column. */
INLINE void assemble(size rows, size d, size main_row, const float *main, size side_row, const float *side,
                     const float *under, float corner, float *out) {
    const size width = padded(d + 1);
    for (size i = 0; i < rows; i++) {
        memcpy(out + i * width, main + i * main_row, d * sizeof(float));
        memset(out + i * width + d, 0, (width - d) * sizeof(float));
        out[i * width + d] = side[i * side_row];
    }
    if (!under) return;
    memset(out + rows * width, 0, width * sizeof(float));
    memcpy(out + rows * width, under, d * sizeof(float));
    out[rows * width + d] = corner;
}

INLINE void split(size rows, size d, const float *from, size main_row, float *main, float *side) {
    const size width = padded(d + 1);
    for (size i = 0; i < rows; i++) {
        memset(main + i * main_row, 0, main_row * sizeof(float));
        memcpy(main + i * main_row, from + i * width, d * sizeof(float));
        side[i] = from[i * width + d];
    }
}

int difformer_gram_forward(const gram *p) {
    const size d = p->channels, e = d + 1, width = padded(e);
    const known k = parts_of(p->kept, d);
    assemble(d, d, padded(d), p->outer, 1, p->states, p->states, (float)p->count, k.g);
    assemble(d, d, d, p->query, 1, p->query_bias, 0, 0, k.a_q);
    assemble(d, d, d, p->key, 1, p->key_bias, 0, 0, k.a_k);
    product(d, width, e, k.a_q, width, 1, k.g, width, 0, 0, k.of_q, width);
    product(d, width, e, k.a_k, width, 1, k.g, width, 0, 0, k.of_k, width);
    product(e, width, d, k.a_q, 1, width, k.of_k, width, 0, 0, k.maps, width);
    float *square = k.numbers, gamma = 1;
    square[0] = inner_of(d * width, k.of_q, k.a_q);
    square[1] = inner_of(d * width, k.of_k, k.a_k);
    for (int i = 0; i < 2; i++) square[i] = square[i] < SMALLEST_SQUARE ? SMALLEST_SQUARE : square[i];
    if (p->scaled) gamma = 1 / sqrtf(square[0]) / sqrtf(square[1]);
    k.numbers[2] = gamma;
    for (size j = 0; j < e * width; j++) k.maps[j] *= gamma;
    for (size j = 0; j < width; j++) k.maps[d * width + j] += k.g[d * width + j];
    memset(p->to_keys, 0, padded(d) * sizeof(float));
    split(d, d, k.maps, padded(d), p->to_outer, p->to_keys);
    split(1, d, k.maps + d * width, padded(d), p->to_values, p->to_count);
    return 0;
}

/* ∂A_q = γ A_k G ∂Uᵀ, with B = γ A_q ∂U: ∂A_k = B G, ∂G = A_kᵀB + e (∂Uᵀe)ᵀ; and through γ, with x = ⟨∂U, γ A_qᵀ A_k G⟩
   = ⟨B, A_k G⟩: ∂‖Q‖² = -x / 2‖Q‖², whose gradients are 2 A_q G and A_qᵀA_q. */
int difformer_gram_backward(const gram *p) {
    const size d = p->channels, e = d + 1, width = padded(e), step = e * width;
    const known k = parts_of(p->kept, d);
    float *room = aligned_alloc(64, (6 * step * sizeof(float) + 63) / 64 * 64), *from = room;
    if (!room) return 1;
    float *grad = taken(&from, step), *turned = taken(&from, step), *b = taken(&from, step);
    float *q_grad = taken(&from, step), *k_grad = taken(&from, step), *g_grad = taken(&from, step);
    const float gamma = k.numbers[2];
    assemble(d, d, padded(d), p->outer_grad, 1, p->keys_grad, p->values_grad, p->count_grad[0], grad);
    memset(turned, 0, step * sizeof(float));
    for (size i = 0; i < e; i++)
        for (size j = 0; j < e; j++) turned[j * width + i] = gamma * grad[i * width + j];
    product(d, width, e, k.of_k, width, 1, turned, width, 0, 0, q_grad, width);
    product(d, width, e, k.a_q, width, 1, grad, width, 0, 0, b, width);
    for (size j = 0; j < d * width; j++) b[j] *= gamma;
    product(e, width, d, k.a_k, 1, width, b, width, 0, 0, g_grad, width);
    product(d, width, e, b, width, 1, k.g, width, 0, 0, k_grad, width);
    for (size j = 0; j < width; j++) g_grad[d * width + j] += grad[d * width + j];
    if (p->scaled) {
        const float x = inner_of(d * width, b, k.of_k); /* without U, in which e (G e)ᵀ is by far the largest term */
        const float *maps[2] = {k.a_q, k.a_k}, *of[2] = {k.of_q, k.of_k};
        float *to[2] = {q_grad, k_grad};
        for (int i = 0; i < 2; i++) {
            const float slope = k.numbers[i] <= SMALLEST_SQUARE ? 0 : -0.5f * x / k.numbers[i];
            for (size j = 0; j < d * width; j++) {
                to[i][j] += 2 * slope * of[i][j];
                b[j] = slope * maps[i][j];
            }
            product(e, width, d, maps[i], 1, width, b, width, g_grad, width, g_grad, width);
        }
    }
    split(d, d, q_grad, d, p->query_grad, p->query_bias_grad);
    split(d, d, k_grad, d, p->key_grad, p->key_bias_grad);
    memset(p->square, 0, d * padded(d) * sizeof(float));
    memset(p->level, 0, padded(d) * sizeof(float));
    for (size i = 0; i < e; i++)
        for (size j = 0; j < d; j++)
            (i < d ? p->square + i * padded(d) : p->level)[j] = g_grad[i * width + j] + g_grad[j * width + i];
    free(room);
    return 0;
}
