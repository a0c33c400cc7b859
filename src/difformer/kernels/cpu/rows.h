/* What the passes do with a block of rows: unit rows, sums, and the gradients of maps. */

#define SMALLEST_NORM 1e-12f

/* Rows of x as a block: themselves where nothing has to be padded, otherwise copied to `room`. */
INLINE const float *block_of(const float *x, size first, size rows, size c, float *room) {
    const size width = padded(c);
    if (width == c) return x + first * c;
    for (size r = 0; r < rows; r++) {
        memcpy(room + r * width, x + (first + r) * c, c * sizeof(float));
        memset(room + r * width + c, 0, (width - c) * sizeof(float));
    }
    return room;
}

/* Unit rows q = q̂ / ‖q̂‖, q̂ = W z + b, of a block; rows shorter than SMALLEST_NORM are divided by that. */
INLINE void unit_block(size rows, size c, size d, const float *z, const float *map, const float *bias, float *q,
                       float *norm) {
    const size width = padded(c);
    product(rows, width, d, z, padded(d), 1, map, width, bias, 0, q, width);
    for (size r = 0; r < rows; r++) {
        float *row = q + r * width;
        const float length = sqrtf(inner_of(c, row, row));
        norm[r] = length < SMALLEST_NORM ? SMALLEST_NORM : length;
        const float inverse = 1.0f / norm[r];
#pragma omp simd
        for (size j = 0; j < width; j++) row[j] *= inverse;
    }
}

/* ∂q̂ = (∂q - q qᵀ∂q) / ‖q̂‖, in place. */
INLINE void pull_unit(size rows, size c, const float *q, const float *norm, float *grad) {
    const size width = padded(c);
    for (size r = 0; r < rows; r++) {
        const float inner = inner_of(c, grad + r * width, q + r * width), inverse = 1.0f / norm[r];
#pragma omp simd
        for (size j = 0; j < width; j++) grad[r * width + j] = (grad[r * width + j] - q[r * width + j] * inner) * inverse;
    }
}

/* sum += Σ_r weight_r x_r; weight 1 where there is none. */
INLINE void add_rows(size rows, size width, const float *x, const float *weight, float *sum) {
    static const float one = 1;
    product(1, width, rows, weight ? weight : &one, 0, weight ? 1 : 0, x, width, sum, width, sum, width);
}

/* Gradient ∂ of a map's output: ∂W += ∂ᵀz, ∂b += Σ∂, ∂z += ∂ W. */
INLINE void pull_map(size rows, size c, size d, const float *grad, const float *z, const float *back, float *w_grad,
                     float *b_grad, float *z_grad) {
    const size width = padded(c), room = padded(d);
    product(c, room, rows, grad, 1, width, z, room, w_grad, room, w_grad, room);
    add_rows(rows, width, grad, 0, b_grad);
    product(rows, room, c, grad, width, 1, back, room, z_grad, room, z_grad, room);
}
