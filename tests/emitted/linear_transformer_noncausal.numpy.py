# ---- linear_transformer_noncausal: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of n chunks of C tokens."""
    (k, v) = inputs
    (S, z) = states
    # feature φ(x) = elu(x) + 1
    phi_k = elu1(k)
    # S[t] = S[t-1] + φ(k) @ v.T
    phi_k_T = turned(phi_k)
    product = phi_k_T @ v
    # z[t] = z[t-1] + φ(k)
    summed = phi_k.sum(-2)
    S_at = [None] * n
    for c in range(n):
        S_at[c] = S
        # S[t] = S[t-1] + φ(k) @ v.T
        added = S + product[:, :, c]
        S = added
    S_at = np.stack(S_at, 2)
    z_at = [None] * n
    for c in range(n):
        z_at[c] = z
        added2 = z + summed[:, :, c]
        z = added2
    z_at = np.stack(z_at, 2)
    return (), (S, z), (S_at, z_at)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (k, v) = inputs
    (S_start, z_start) = starts
    (dS, dz) = dstates
    phi_k = elu1(k)
    raised = np.exp(np.minimum(k, 0))
    dS_at = [None] * n
    for c in reversed(range(n)):
        dS_at[c] = dS
    dS_at = np.stack(dS_at, 2)
    dS_T = turned(dS_at)
    product = v @ dS_T
    dv = phi_k @ dS_at
    dz_at = [None] * n
    for c in reversed(range(n)):
        dz_at[c] = dz
    dz_at = np.stack(dz_at, 2)
    dk = (dz_at[..., None, :] + product) * raised
    return (dk, dv), (), (), (dS, dz)


def prepare_1(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (last_S, last_z) = last
    return (last_S, last_z)


def prepare_back_1(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (last_S, last_z) = last
    return (last_S, last_z)


def forward_1(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of n chunks of C tokens."""
    (q,) = inputs
    (last_S, last_z) = constants
    tile = elu1(q)
    # normalizer n = z[T].T @ φ(q)
    n2 = (last_z[..., None, :] @ tile.swapaxes(-1, -2))[..., 0, :]
    o = tile @ last_S / n2[..., None]
    return (o,), (), ()


def backward_1(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_1 takes, from those of what it gives."""
    (q,) = inputs
    (do,) = cotangents
    (last_S, last_z) = constants
    tile = elu1(q)
    n2 = (last_z[..., None, :] @ tile.swapaxes(-1, -2))[..., 0, :]
    dn = (-(do * (tile @ last_S / n2[..., None] / n2[..., None]))).sum(-1)
    dz = (dn[..., None, :] @ tile)[..., 0, :]
    tile2 = do * (1 / n2)[..., None]
    tile2_T = turned(tile2)
    last_S_T = turned(last_S)
    added = tile2 @ last_S_T
    added += dn[..., None] * last_z[..., None, :]
    dq = added * np.exp(np.minimum(q, 0))
    tile3 = (tile2_T @ tile).swapaxes(-1, -2)
    return (dq,), (), (tile3, dz), ()
