/* Numbers of blocks in, the sequence, chunk and tokens that they work at out, where the entries of
   arrays begin, and where tiles lie: in shared memory behind the operands of products, or, those that
   do not fit there, in a block's part of a scratch buffer of the caller. */

/* Of a sequence: the row of the batch, its first token in it, its tokens, and the number of its first
   chunk. Sequences are the rows, T tokens each (cu null), or stretches of one row, from token cu[n]
   to cu[n + 1]; then firsts[n] is the number of the first chunk of sequence n. */
struct sequence_place {
    int64_t batch, first, tokens, chunk;
};

INLINE sequence_place sequence_at(int64_t n, int64_t T, const int64_t *cu, const int32_t *firsts) {
    if (!cu) return {n, 0, T, n * ((T + CHUNK_L - 1) / CHUNK_L)};
    return {0, cu[n], cu[n + 1] - cu[n], firsts[n]};
}

/* The sequence of a chunk, and its number there: table[c] says both where sequences are stretches. */
struct chunk_place {
    int64_t sequence, index;
};

INLINE chunk_place chunk_at(int64_t c, int64_t T, const int32_t *table) {
    const int64_t each = (T + CHUNK_L - 1) / CHUNK_L;
    if (!table) return {c / each, c % each};
    return {table[2 * c], table[2 * c + 1]};
}

/* The entries of an array from one on, of the type of that number; null where it is not given. */
template <int type>
INLINE typename element<type>::type *entries(void *x, int64_t from) {
    return x ? (typename element<type>::type *)x + from : nullptr;
}

template <int type>
INLINE const typename element<type>::type *entries(const void *x, int64_t from) {
    return x ? (const typename element<type>::type *)x + from : nullptr;
}

template <class T>
INLINE T *moved(T *x, int64_t by) {
    return x ? x + by : x;
}

ROOM int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* A tile: its size in floats, and the stretches of a kernel
   between barriers from which to which it is held. */
struct held {
    int64_t size;
    int from, to;
    bool spare = false; /* only where it is near */
};

template <int n>
struct placement {
    int64_t at[n];
    bool near[n];
    int64_t shared, scratch, staging; /* bytes of a block; those of operands, before its tiles */

    __device__ __forceinline__ real *tile(int k, void *far) const {
        unsigned char *base = near[k] ? shared_memory() + staging : (unsigned char *)far + blocks_before() * scratch;
        return (real *)base + at[k];
    }

    /* A tile that is only near, or null. */
    __device__ __forceinline__ real *spare(int k) const {
        return near[k] ? tile(k, nullptr) : nullptr;
    }

    static __device__ __forceinline__ int64_t blocks_before() {
        return (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    }
};

/* Each tile at the first place that is free as long as it is held; the first ones have the choice. */
template <int n>
ROOM placement<n> placed(const held (&tiles)[n], int64_t staging = OPERANDS) {
    placement<n> out{};
    out.shared = out.staging = staging;
    for (int k = 0; k < n; k++)
        for (int far = 0; far < (tiles[k].spare ? 1 : 2); far++) {
            const int64_t size = (tiles[k].size + 31) / 32 * 32;
            int64_t at = 0;
            for (int j = 0; j < k; j++) {
                const int64_t end = out.at[j] + (tiles[j].size + 31) / 32 * 32;
                const bool together = tiles[j].from <= tiles[k].to && tiles[k].from <= tiles[j].to;
                if (out.near[j] == !far && (out.near[j] || !tiles[j].spare) && together && at < end && out.at[j] < at + size) {
                    at = end;
                    j = -1;
                }
            }
            const int64_t bytes = (at + size) * (int64_t)sizeof(real);
            if (!far && staging + bytes > SHARED_LIMIT) continue;
            out.at[k] = at;
            out.near[k] = !far;
            int64_t &room = far ? out.scratch : out.shared;
            const int64_t all = far ? bytes : staging + bytes;
            room = room < all ? all : room;
            break;
        }
    return out;
}
