// Many strided copies in one launch. DIMS, COPIES, THREADS and EACH_16 to EACH_1 come from the compiler's command line; the
// tables are made in copy_tables.py, which has the same structures.

struct Copy {
    unsigned long long into, out_of;  // addresses
    unsigned first_block;             // the first block of the launch that works on it
    unsigned units;                   // how many units it has
    unsigned unit, dims;              // bytes of a unit, which is copied at once; how many dims
    unsigned sizes[DIMS], into_strides[DIMS], out_strides[DIMS];  // innermost first: sizes in units there, strides in bytes
};

struct Table {
    unsigned count;
    Copy copies[COPIES];
};

// A block's share of a copy: each thread copies EACH units, all of them read before the first is written.
template <typename Unit, int EACH>
__device__ __forceinline__ void copy_share(const Copy& copy, unsigned block) {
    const unsigned start = block * (THREADS * EACH) + threadIdx.x;
    Unit values[EACH];
    unsigned offsets[EACH];
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        unsigned left = start + each * THREADS;
        if (left >= copy.units) break;
        unsigned into = 0, out_of = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS; dim++) {
            const bool last = dim + 1 >= copy.dims;
            const unsigned next = last ? 0 : left / copy.sizes[dim];
            const unsigned index = left - next * copy.sizes[dim];
            into += index * copy.into_strides[dim];
            out_of += index * copy.out_strides[dim];
            left = next;
            if (last) break;
        }
        values[each] = *reinterpret_cast<const Unit*>(copy.out_of + out_of);
        offsets[each] = into;
    }
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        if (start + each * THREADS >= copy.units) break;
        *reinterpret_cast<Unit*>(copy.into + offsets[each]) = values[each];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS) copy(const __grid_constant__ Table table) {
    unsigned number = 0;  // of the last copy whose first block is this one or an earlier one
    for (unsigned end = table.count; number + 1 < end;) {
        const unsigned middle = (number + end) / 2;
        (table.copies[middle].first_block <= blockIdx.x ? number : end) = middle;
    }
    const Copy& copy = table.copies[number];
    const unsigned block = blockIdx.x - copy.first_block;
    switch (copy.unit) {
        case 16: return copy_share<uint4, EACH_16>(copy, block);
        case 8: return copy_share<unsigned long long, EACH_8>(copy, block);
        case 4: return copy_share<unsigned, EACH_4>(copy, block);
        case 2: return copy_share<unsigned short, EACH_2>(copy, block);
        default: return copy_share<unsigned char, EACH_1>(copy, block);
    }
}
