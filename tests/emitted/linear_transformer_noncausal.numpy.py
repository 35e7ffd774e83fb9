# ---- linear_transformer_noncausal: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype, outputs=True):
    """Outputs and next state of n chunks of C tokens."""
    (k, v) = inputs
    (S, z) = states
    v = packed(v, dtype)
    # feature φ(x) = elu(x) + 1
    phi_k = elu1(k)
    # S[t] = S[t-1] + φ(k) @ v.T
    S_at = room(S, n, 0)
    np.matmul(phi_k.swapaxes(-1, -2), v, out=S_at[:, :, 1:])
    # z[t] = z[t-1] + φ(k)
    summed = phi_k.sum(-2)
    for c in range(n):
        S = S_at[:, :, c]
        # S[t] = S[t-1] + φ(k) @ v.T
        S_at[:, :, c + 1] += S
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    z_at = room(z, n, 0)
    for c in range(n):
        z = z_at[:, :, c]
        np.add(z, summed[:, :, c], out=z_at[:, :, c + 1])
    z, z_at = z_at[:, :, -1], z_at[:, :, :-1]
    if not outputs:
        return (), (S, z), (S_at, z_at)
    return (), (S, z), (S_at, z_at)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (k, v) = inputs
    (S_start, z_start) = starts
    (dS, dz) = dstates
    phi_k = elu1(k)
    raised = np.exp(np.minimum(k, 0))
    dS_at = room(dS, n, n)
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        dS_at[:, :, c] = dS
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    dS_T = turned(dS_at)
    dphi_k = v @ dS_T
    dv = phi_k @ dS_at
    dz_at = room(dz, n, n)
    for c in reversed(range(n)):
        dz = dz_at[:, :, c + 1]
        dz_at[:, :, c] = dz
    dz, dz_at = dz_at[:, :, 0], dz_at[:, :, 1:]
    dk = (dz_at[..., None, :] + dphi_k) * raised
    return (dk, dv), (), (), (dS, dz)


def prepare_1(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (last_S, last_z) = last
    return (last_S, last_z)


def prepare_back_1(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (last_S, last_z) = last
    return (last_S, last_z)


def forward_1(inputs, states, constants, n, C, dims, dtype, outputs=True):
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
    q = packed(q, dtype)
    tile = elu1(q)
    n2 = (last_z[..., None, :] @ tile.swapaxes(-1, -2))[..., 0, :]
    dn = (-(do * (tile @ last_S / n2[..., None] / n2[..., None]))).sum(-1)
    dz = (dn[..., None, :] @ tile)[..., 0, :]
    tile2 = do * (1 / n2)[..., None]
    last_S_T = turned(last_S)
    added = tile2 @ last_S_T
    added += dn[..., None] * last_z[..., None, :]
    dq = added * np.exp(np.minimum(q, 0))
    tile3 = (tile2.swapaxes(-1, -2) @ tile).swapaxes(-1, -2)
    return (dq,), (), (tile3, dz), ()
