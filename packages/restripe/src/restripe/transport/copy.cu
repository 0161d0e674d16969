// Many strided copies in one launch. DIMS, MOST, THREADS and EACH_16 to EACH_1 come from the compiler's command line; the
// tables are made in pieces.py, which has the same structures.

struct Piece {
    unsigned long long dst, src;  // addresses
    unsigned tile;                // the first block of the launch that copies of it
    unsigned total;               // units
    unsigned unit, dims;          // bytes that are copied at once; how many dims
    unsigned sizes[DIMS], dst_strides[DIMS], src_strides[DIMS];  // innermost first: sizes in units there, strides in bytes
};

struct Table {
    unsigned count;
    Piece pieces[MOST];
};

// What a block copies of a piece: each thread EACH units, all of them read before the first is written.
template <typename Unit, int EACH>
__device__ __forceinline__ void copy_tile(const Piece& piece, unsigned tile) {
    const unsigned first = tile * (THREADS * EACH) + threadIdx.x;
    Unit values[EACH];
    unsigned places[EACH];
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        unsigned left = first + each * THREADS;
        if (left >= piece.total) break;
        unsigned dst = 0, src = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS; dim++) {
            const bool last = dim + 1 >= piece.dims;
            const unsigned next = last ? 0 : left / piece.sizes[dim];
            const unsigned here = left - next * piece.sizes[dim];
            dst += here * piece.dst_strides[dim];
            src += here * piece.src_strides[dim];
            left = next;
            if (last) break;
        }
        values[each] = *reinterpret_cast<const Unit*>(piece.src + src);
        places[each] = dst;
    }
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        if (first + each * THREADS >= piece.total) break;
        *reinterpret_cast<Unit*>(piece.dst + places[each]) = values[each];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS) copy(const __grid_constant__ Table table) {
    unsigned number = 0;  // of the last piece that begins at this block or before
    for (unsigned end = table.count; number + 1 < end;) {
        const unsigned middle = (number + end) / 2;
        (table.pieces[middle].tile <= blockIdx.x ? number : end) = middle;
    }
    const Piece& piece = table.pieces[number];
    const unsigned tile = blockIdx.x - piece.tile;
    switch (piece.unit) {
        case 16: return copy_tile<uint4, EACH_16>(piece, tile);
        case 8: return copy_tile<unsigned long long, EACH_8>(piece, tile);
        case 4: return copy_tile<unsigned, EACH_4>(piece, tile);
        case 2: return copy_tile<unsigned short, EACH_2>(piece, tile);
        default: return copy_tile<unsigned char, EACH_1>(piece, tile);
    }
}
