# ---- retnet: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def prepare_0(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (head,) = fixed
    decay = levels(spread(np.log(1 - 2 ** (-5 - head))[..., None], C)[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    between2 = between(decay)
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    return (up, between2, total, down)


def prepare_back_0(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (head,) = fixed
    decay = levels(spread(np.log(1 - 2 ** (-5 - head))[..., None], C)[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    between2 = between(decay)
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    return (up, between2, total, down)


def forward_0(inputs, states, constants, n, C, dims, dtype, outputs=True):
    """Outputs and next state of n chunks of C tokens."""
    (q, k, v) = inputs
    (S,) = states
    (up, between2, total, down) = constants
    v = packed(v, dtype)
    K = dims["K"]
    # S[t] = γ * S[t-1] + k @ v.T
    S_at = room(S, n, 0)
    np.matmul((k * down[..., None]).swapaxes(-1, -2), v, out=S_at[:, :, 1:])
    for c in range(n):
        S = S_at[:, :, c]
        S_at[:, :, c + 1] += total[:, :, 0][..., None, None] * S
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    if not outputs:
        return (), (S,), (S_at,)
    k_T = turned(k)
    scaled = q @ k_T
    scaled *= between2
    added = q * up[..., None] @ S_at
    added += scaled @ v
    # o = K**-0.5 * S[t].T @ q
    added *= K ** (-0.5)
    return (added,), (S,), (S_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (q, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    (up, between2, total, down) = constants
    q = packed(q, dtype)
    k = packed(k, dtype)
    do = packed(do, dtype)
    K = dims["K"]
    k_T = turned(k)
    scaled = q @ k_T
    scaled *= between2
    scaled2 = k * down[..., None]
    scaled3 = do * K ** (-0.5)
    v_T = turned(v)
    dv2 = scaled.swapaxes(-1, -2) @ scaled3
    scaled4 = scaled3 @ v_T
    scaled4 *= between2
    dk2 = scaled4.swapaxes(-1, -2) @ q
    S_start_T = turned(S_start)
    dS_at = room(dS, n, n)
    np.matmul((q * up[..., None]).swapaxes(-1, -2), scaled3, out=dS_at[:, :, :-1])
    dq2 = scaled3 @ S_start_T
    dq2 *= up[..., None]
    dq = scaled4 @ k
    dq += dq2
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        dS_at[:, :, c] += dS * total[:, :, 0][..., None, None]
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    dS_T = turned(dS_at)
    dk3 = v @ dS_T
    dk3 *= down[..., None]
    dv = scaled2 @ dS_at
    dv += dv2
    dk3 += dk2
    return (dq, dk3, dv), (None,), (), (dS,)


def prepare_token(C, dims, dtype, fixed, last):
    """What a token needs and no token changes."""
    (head,) = fixed
    gamma = 1 - 2 ** (-5 - head)
    return (gamma,)


def prepare_back_token(C, dims, dtype, fixed, last):
    """What a token needs and no token changes."""
    (head,) = fixed
    gamma = 1 - 2 ** (-5 - head)
    return (gamma,)


def forward_token(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of one token."""
    (q, k, v) = inputs
    (S,) = states
    (gamma,) = constants
    S = S[:, :, None]
    K = dims["K"]
    # S[t] = γ * S[t-1] + k @ v.T
    S2 = gamma[..., None, None] * S + k[..., None] * v[..., None, :]
    # o = K**-0.5 * S[t].T @ q
    o = (q[..., None, :] @ S2)[..., 0, :]
    o *= K ** (-0.5)
    return (o,), (S2[:, :, 0],), ()


def backward_token(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_token takes, from those of what it gives."""
    (q, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    (gamma,) = constants
    dS = dS[:, :, None]
    K = dims["K"]
    S2 = gamma[..., None, None] * S_start + k[..., None] * v[..., None, :]
    scaled = do * K ** (-0.5)
    dq = (scaled[..., None, :] @ S2.swapaxes(-1, -2))[..., 0, :]
    dS2 = dS + scaled[..., None, :] * q[..., None]
    dk = (dS2 * v[..., None, :]).sum(-1)
    dv = (dS2 * k[..., None]).sum(-2)
    dS3 = dS2 * gamma[..., None, None]
    return (dq, dk, dv), (None,), (), (dS3[:, :, 0],)
