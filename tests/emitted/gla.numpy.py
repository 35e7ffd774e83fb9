# ---- gla: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype, outputs=True):
    """Outputs and next state of n chunks of C tokens."""
    (q, g, k, v) = inputs
    (S,) = states
    v = packed(v, dtype)
    K = dims["K"]
    # S[t] = diag(α) @ S[t-1] + k @ v.T
    decay = levels(g, log=True, strict=False)
    pairs, from_start, to_end = meet(q, k, decay)
    total = whole(decay)
    S_at = room(S, n, 0)
    np.matmul(to_end.swapaxes(-1, -2), v, out=S_at[:, :, 1:])
    for c in range(n):
        S = S_at[:, :, c]
        S_at[:, :, c + 1] += total[:, :, c][..., None] * S
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    if not outputs:
        return (), (S,), (S_at,)
    added = from_start @ S_at
    added += pairs @ v
    # o = K**-0.5 * S[t].T @ q
    added *= K ** (-0.5)
    return (added,), (S,), (S_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (q, g, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    q = packed(q, dtype)
    k = packed(k, dtype)
    do = packed(do, dtype)
    K = dims["K"]
    decay = levels(g, log=True, strict=False)
    up = prefix(decay)
    pairs, from_start, to_end = meet(q, k, decay)
    total = whole(decay)
    down = suffix(decay)
    scaled = do * K ** (-0.5)
    v_T = turned(v)
    dv2 = pairs.swapaxes(-1, -2) @ scaled
    dq2, dk2, dg2 = meet_pull(scaled @ v_T, q, k, decay)
    S_start_T = turned(S_start)
    product = scaled @ S_start_T
    dS_at = room(dS, n, n)
    np.matmul(from_start.swapaxes(-1, -2), scaled, out=dS_at[:, :, :-1])
    dq = dq2 + product * up
    dg3 = prefix_pull(product * q, decay)
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        dS_at[:, :, c] += dS * total[:, :, c][..., None]
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    dS_T = turned(dS_at)
    product2 = v @ dS_T
    dg4 = suffix_pull(product2 * k, decay)
    dg5 = whole_pull(np.einsum("...ab,...ab->...a", dS_at, S_start), decay)
    dv = to_end @ dS_at
    dv += dv2
    dk = product2 * down + dk2
    dg = dg4 + dg5 + dg2 + dg3
    return (dq, dg, dk, dv), (), (), (dS,)


def forward_token(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of one token."""
    (q, g, k, v) = inputs
    (S,) = states
    S = S[:, :, None]
    K = dims["K"]
    # S[t] = diag(α) @ S[t-1] + k @ v.T
    S2 = np.exp(g)[..., None] * S + k[..., None] * v[..., None, :]
    # o = K**-0.5 * S[t].T @ q
    o = (q[..., None, :] @ S2)[..., 0, :]
    o *= K ** (-0.5)
    return (o,), (S2[:, :, 0],), ()


def backward_token(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_token takes, from those of what it gives."""
    (q, g, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    dS = dS[:, :, None]
    K = dims["K"]
    alpha = np.exp(g)
    S2 = alpha[..., None] * S_start + k[..., None] * v[..., None, :]
    scaled = do * K ** (-0.5)
    dq = (scaled[..., None, :] @ S2.swapaxes(-1, -2))[..., 0, :]
    dS2 = dS + scaled[..., None, :] * q[..., None]
    dk = (dS2 * v[..., None, :]).sum(-1)
    dv = (dS2 * k[..., None]).sum(-2)
    dS3 = dS2 * alpha[..., None]
    dg = np.einsum("...ab,...ab->...a", dS2, S_start)
    dg *= alpha
    return (dq, dg, dk, dv), (), (), (dS3[:, :, 0],)


def promised(x, fixed, C, dims, dtype):
    """Where each promise of the spec holds."""
    le = x["g"] <= 0
    return {"p0": le}
