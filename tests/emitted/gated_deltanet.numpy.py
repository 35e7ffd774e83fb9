# ---- gated_deltanet: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of n chunks of C tokens."""
    (q, g, k, v, beta) = inputs
    (S,) = states
    K, V = dims["K"], dims["V"]
    # S[t] = α * (I - β * k @ k.T) @ S[t-1]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    scaled = q * up[..., None]
    # gate α = exp(g)
    negated = -(beta[..., None] * k)
    # S[t] = α * (I - β * k @ k.T) @ S[t-1]
    k_T = turned(k)
    between2 = between(decay)
    scaled2 = negated @ k_T
    scaled2 *= between2
    inverted = inverse(-scaled2)
    product = inverted @ (v * beta[..., None])
    product2 = inverted @ (negated * up[..., None])
    scaled3 = q @ k_T
    scaled3 *= between2
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled4 = k * down[..., None]
    S_at = room(S, n, 0)
    added_at = slots(S, n, C, V)
    for c in range(n):
        S = S_at[:, :, c]
        added = added_at[:, :, c]
        np.add(product[:, :, c], product2[:, :, c] @ S, out=added)
        np.add(total[:, :, c][..., None, None] * S, scaled4[:, :, c].swapaxes(-1, -2) @ added, out=S_at[:, :, c + 1])
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    added2 = scaled @ S_at
    added2 += scaled3 @ added_at
    # o = K**-0.5 * S[t].T @ q
    added2 *= K ** (-0.5)
    return (added2,), (S,), (S_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (q, g, k, v, beta) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    K, V = dims["K"], dims["V"]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    negated = -(beta[..., None] * k)
    k_T = turned(k)
    product = negated @ k_T
    between2 = between(decay)
    scaled = negated * up[..., None]
    added = scaled @ S_start
    added += v * beta[..., None]
    inverted = inverse(-(product * between2))
    product2 = inverted @ added
    product3 = q @ k_T
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled2 = do * K ** (-0.5)
    product2_T = turned(product2)
    product4 = scaled2 @ product2_T
    scaled3 = product4 * between2
    scaled4 = product4 * product3
    product5 = scaled3.swapaxes(-1, -2) @ q
    tile = inverted.swapaxes(-1, -2) @ (k * down[..., None])
    product6 = inverted.swapaxes(-1, -2) @ ((product3 * between2).swapaxes(-1, -2) @ scaled2)
    S_start_T = turned(S_start)
    product7 = scaled2 @ S_start_T
    product8 = scaled2.swapaxes(-1, -2) @ (q * up[..., None])
    dq = scaled3 @ k
    dq += product7 * up[..., None]
    summed = (product7 * q).sum(-1)
    dS_at = room(dS, n, n)
    added2_at = slots(dS, n, C, V)
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        added2 = added2_at[:, :, c]
        np.add(tile[:, :, c] @ dS, product6[:, :, c], out=added2)
        dS2 = dS * total[:, :, c][..., None, None] + (added2.swapaxes(-1, -2) @ scaled[:, :, c]).swapaxes(-1, -2)
        np.add(dS2, product8[:, :, c].swapaxes(-1, -2), out=dS_at[:, :, c])
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    dS_T = turned(dS_at)
    product9 = product2 @ dS_T
    suffix_pull2 = suffix_pull((product9 * k).sum(-1)[..., None], decay)[..., 0]
    whole_pull2 = whole_pull((dS_at * S_start).sum((-2, -1))[..., None], decay)[..., 0]
    pairs = np.tril(added2_at @ product2_T, -1)
    product10 = added2_at @ S_start_T
    scaled5 = pairs * between2
    matrix_pull = between_pull(scaled4 + pairs * product, decay)[..., 0]
    added3 = scaled5 @ k
    added3 += product10 * up[..., None]
    added4 = scaled5.swapaxes(-1, -2) @ negated
    added4 += product5
    negated2 = -added3
    dk = product9 * down[..., None] + added4 + negated2 * beta[..., None]
    dv = added2_at * beta[..., None]
    dbeta = (negated2 * k).sum(-1) + (added2_at * v).sum(-1)
    prefix_pull2 = prefix_pull(((product10 * negated).sum(-1) + summed)[..., None], decay)[..., 0]
    dg = suffix_pull2 + whole_pull2 + matrix_pull + prefix_pull2
    return (dq, dg, dk, dv, dbeta), (), (), (dS,)


def forward_token(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of one token."""
    (q, g, beta, k, v) = inputs
    (S,) = states
    S = S[:, :, None]
    K = dims["K"]
    # gate α = exp(g)
    alpha = np.exp(g)
    product = ((-((alpha * beta)[..., None] * k))[..., None, :] @ S)[..., 0, :]
    added = alpha[..., None, None] * S + k[..., None] * product[..., None, :]
    # + β * k @ v.T
    added += (beta[..., None] * k)[..., None] * v[..., None, :]
    # o = K**-0.5 * S[t].T @ q
    o = (q[..., None, :] @ added)[..., 0, :]
    o *= K ** (-0.5)
    return (o,), (added[:, :, 0],), ()


def backward_token(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_token takes, from those of what it gives."""
    (q, g, beta, k, v) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    dS = dS[:, :, None]
    K = dims["K"]
    alpha = np.exp(g)
    scaled = alpha * beta
    negated = -(scaled[..., None] * k)
    product = (negated[..., None, :] @ S_start)[..., 0, :]
    added = alpha[..., None, None] * S_start + k[..., None] * product[..., None, :]
    scaled2 = beta[..., None] * k
    added += scaled2[..., None] * v[..., None, :]
    scaled3 = do * K ** (-0.5)
    dq = (scaled3[..., None, :] @ added.swapaxes(-1, -2))[..., 0, :]
    dS2 = dS + (scaled3[..., None] * q[..., None, :]).swapaxes(-1, -2)
    summed = (dS2 * v[..., None, :]).sum(-1)
    dv = (dS2 * scaled2[..., None]).sum(-2)
    dk = summed * beta[..., None] + (dS2 * product[..., None, :]).sum(-1)
    summed2 = (dS2 * k[..., None]).sum(-2)
    product2 = (summed2[..., None, :] @ S_start.swapaxes(-1, -2))[..., 0, :]
    negated2 = -product2
    summed3 = (negated2 * k).sum(-1)
    dk += negated2 * scaled[..., None]
    dbeta = (summed * k).sum(-1) + summed3 * alpha
    dS3 = summed2[..., None] * negated[..., None, :] + (dS2 * alpha[..., None, None]).swapaxes(-1, -2)
    dg = (summed3 * beta + (dS2 * S_start).sum((-2, -1))) * alpha
    tile = dS3.swapaxes(-1, -2)
    return (dq, dg, dbeta, dk, dv), (), (), (tile[:, :, 0],)


def promised(x, fixed, C, dims, dtype):
    """Where each promise of the spec holds."""
    le = (x["k"] * x["k"]).sum(-1) <= 1
    le2 = x["g"] <= 0
    lt = 0 < x["beta"]
    lt2 = x["beta"] < 1
    return {"p0": le, "p1": le2, "p2": lt, "p3": lt2}
