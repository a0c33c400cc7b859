/* Products of small matrices, and of a sparse matrix with rows, held in registers.

   Rows stand in blocks of BLOCK; inside a block a row takes `padded(c)` floats, a multiple of LANES, so that nothing has
   to look at odd widths: what lies behind the last channel is zero, or is never read. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64 /* rows that are worked on together: a few arrays of them fit the first levels of cache */
#define LANES 16 /* floats that rows of a block are padded to */
#define TILE 4   /* rows of a product held in registers */
#define AHEAD 24  /* entries of a sparse row that are fetched before they are needed */

/* Floats of a vector register, and how many of them a row of a tile takes: TILE × STRIP registers hold the sums. */
#if defined(__AVX512F__)
#define VECTOR 16
#define STRIP 4
#elif defined(__AVX__)
#define VECTOR 8
#define STRIP 2
#else
#define VECTOR 4
#define STRIP 4
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int64_t size;

INLINE size padded(size c) { return (c + LANES - 1) / LANES * LANES; }
INLINE size least(size a, size b) { return a < b ? a : b; }

INLINE float *taken(float **from, size count) {
    float *here = *from;
    *from += count;
    return here;
}

/* The sum of a register, halves upon halves: a chain of additions, one after the other, takes several times as long. */
INLINE float across(vector v) {
#if VECTOR == 16
    typedef float half __attribute__((vector_size(32), may_alias));
    const half folded = ((const half *)&v)[0] + ((const half *)&v)[1];
#else
    const vector folded = v;
#endif
#if VECTOR >= 8
    typedef float quarter __attribute__((vector_size(16), may_alias));
    const quarter four = ((const quarter *)&folded)[0] + ((const quarter *)&folded)[1];
#else
    const vector four = folded;
#endif
    return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float inner_of(size c, const float *a, const float *b) {
    vector sum = {0};
    float rest = 0;
    size j = 0;
    for (; j + VECTOR <= c; j += VECTOR) sum += *(const vector *)(a + j) * *(const vector *)(b + j);
    for (; j < c; j++) rest += a[j] * b[j];
    return across(sum) + rest;
}

INLINE float sum_of(size c, const float *a) {
    vector sum = {0};
    float rest = 0;
    size j = 0;
    for (; j + VECTOR <= c; j += VECTOR) sum += *(const vector *)(a + j);
    for (; j < c; j++) rest += a[j];
    return across(sum) + rest;
}

/* out = start + A B for `rows` × `strips` registers; A is read at a[i row + p column]. */
INLINE void tile(const int rows, const int strips, size depth, const float *a, size row, size column, const float *b,
                 size b_row, const float *start, size start_row, float *out, size out_row) {
    vector sum[TILE][STRIP];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < strips; j++)
            sum[i][j] = start ? *(const vector *)(start + i * start_row + j * VECTOR) : (vector){0};
    for (size p = 0; p < depth; p++) {
        const vector *right = (const vector *)(b + p * b_row);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const float left = a[i * row + p * column];
#pragma GCC unroll 8
            for (int j = 0; j < strips; j++) sum[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < strips; j++) *(vector *)(out + i * out_row + j * VECTOR) = sum[i][j];
}

INLINE void tile_rows(const int strips, size m, size depth, const float *a, size row, size column, const float *b,
                      size b_row, const float *start, size start_row, float *out, size out_row) {
    size i = 0;
    for (; i + TILE <= m; i += TILE)
        tile(TILE, strips, depth, a + i * row, row, column, b, b_row, start ? start + i * start_row : 0, start_row,
             out + i * out_row, out_row);
    for (; i < m; i++)
        tile(1, strips, depth, a + i * row, row, column, b, b_row, start ? start + i * start_row : 0, start_row,
             out + i * out_row, out_row);
}

/* out[m, n] = start + A[m, depth] B[depth, n], with n a multiple of LANES. A may be a transpose: its entry (i, p) stands
   at a[i row + p column]. `start` is nothing, one row for all (start_row 0), or `out` itself. */
static void product(size m, size n, size depth, const float *a, size row, size column, const float *b, size b_row,
                    const float *start, size start_row, float *out, size out_row) {
    size j = 0;
    for (; j + STRIP * VECTOR <= n; j += STRIP * VECTOR)
        tile_rows(STRIP, m, depth, a, row, column, b + j, b_row, start ? start + j : 0, start_row, out + j, out_row);
    for (; j < n; j += VECTOR)
        tile_rows(1, m, depth, a, row, column, b + j, b_row, start ? start + j : 0, start_row, out + j, out_row);
}
