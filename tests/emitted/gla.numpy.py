# ---- gla: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of n chunks of C tokens."""
    (q, g, k, v) = inputs
    (S,) = states
    K = dims["K"]
    # S[t] = diag(α) @ S[t-1] + k @ v.T
    decay = levels(g, log=True, strict=False)
    pairs, from_start, to_end = meet(q, k, decay)
    product = pairs @ v
    total = whole(decay)
    to_end_T = turned(to_end)
    product2 = to_end_T @ v
    S_at = [None] * n
    for c in range(n):
        S_at[c] = S
        added = total[:, :, c][..., None] * S + product2[:, :, c]
        S = added
    S_at = np.stack(S_at, 2)
    added2 = from_start @ S_at
    added2 += product
    # o = K**-0.5 * S[t].T @ q
    added2 *= K ** (-0.5)
    return (added2,), (S,), (S_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (q, g, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    K = dims["K"]
    decay = levels(g, log=True, strict=False)
    up = prefix(decay)
    pairs, from_start, to_end = meet(q, k, decay)
    total = whole(decay)
    down = suffix(decay)
    scaled = do * K ** (-0.5)
    v_T = turned(v)
    pairs_T = turned(pairs)
    tile = pairs_T @ scaled
    dq, part, part2 = meet_pull(scaled @ v_T, q, k, decay)
    S_start_T = turned(S_start)
    product = scaled @ S_start_T
    scaled_T = turned(scaled)
    product2 = scaled_T @ from_start
    dq2 = dq + product * up
    prefix_pull2 = prefix_pull(product * q, decay)
    dS_at = [None] * n
    for c in reversed(range(n)):
        dS_at[c] = dS
        dS2 = dS * total[:, :, c][..., None] + product2[:, :, c].swapaxes(-1, -2)
        dS = dS2
    dS_at = np.stack(dS_at, 2)
    dS_T = turned(dS_at)
    product3 = v @ dS_T
    suffix_pull2 = suffix_pull(product3 * k, decay)
    whole_pull2 = whole_pull((dS_at * S_start).sum(-1), decay)
    dv = to_end @ dS_at
    dv += tile
    dk = product3 * down + part
    dg = suffix_pull2 + whole_pull2 + part2 + prefix_pull2
    return (dq2, dg, dk, dv), (), (), (dS,)


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
    dS2 = dS + (scaled[..., None] * q[..., None, :]).swapaxes(-1, -2)
    dk = (dS2 * v[..., None, :]).sum(-1)
    dv = (dS2 * k[..., None]).sum(-2)
    dS3 = dS2 * alpha[..., None]
    dg = (dS2 * S_start).sum(-1) * alpha
    return (dq, dg, dk, dv), (), (), (dS3[:, :, 0],)


def promised(x, fixed, C, dims, dtype):
    """Where each promise of the spec holds."""
    le = x["g"] <= 0
    return {"p0": le}
