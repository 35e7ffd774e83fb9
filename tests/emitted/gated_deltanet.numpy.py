# ---- gated_deltanet: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of n chunks of C tokens."""
    (q, g, k, v, beta) = inputs
    (S,) = states
    K = dims["K"]
    # S[t] = α * (I - β * k @ k.T) @ S[t-1]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    scaled = q * up[..., None]
    # gate α = exp(g)
    negated = -((np.exp(g) * beta)[..., None] * k)
    # S[t] = α * (I - β * k @ k.T) @ S[t-1]
    decay2 = levels(g[..., None], log=True, strict=True)
    k_T = turned(k)
    between2 = between(decay2)
    scaled2 = negated @ k_T
    scaled2 *= between2
    up2 = prefix(decay2)[..., 0]
    inverted = inverse(-scaled2)
    product = inverted @ np.ascontiguousarray(v * beta[..., None])
    product2 = inverted @ np.ascontiguousarray(negated * up2[..., None])
    between3 = between(decay)
    scaled3 = q @ k_T
    scaled3 *= between3
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled4 = k * down[..., None]
    S_at = room(S, n, 0)
    added_at = [None] * n
    for c in range(n):
        S = S_at[:, :, c]
        added = product2[:, :, c] @ S
        added += product[:, :, c]
        np.add(total[:, :, c][..., None, None] * S, scaled4[:, :, c].swapaxes(-1, -2) @ added, out=S_at[:, :, c + 1])
        added_at[c] = added
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    added_at = np.stack(added_at, 2)
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
    K = dims["K"]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    alpha = np.exp(g)
    scaled = alpha * beta
    negated = -(scaled[..., None] * k)
    decay2 = levels(g[..., None], log=True, strict=True)
    k_T = turned(k)
    product = negated @ k_T
    between2 = between(decay2)
    up2 = prefix(decay2)[..., 0]
    scaled2 = negated * up2[..., None]
    added = scaled2 @ S_start
    added += v * beta[..., None]
    inverted = inverse(-(product * between2))
    added = np.ascontiguousarray(added)
    product2 = inverted @ added
    product3 = q @ k_T
    between3 = between(decay)
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled3 = do * K ** (-0.5)
    product2_T = turned(product2)
    product4 = scaled3 @ product2_T
    scaled3 = np.ascontiguousarray(scaled3)
    scaled4 = product4 * between3
    matrix_pull = between_pull(product4 * product3, decay)[..., 0]
    k = np.ascontiguousarray(k)
    q = np.ascontiguousarray(q)
    product5 = scaled4.swapaxes(-1, -2) @ q
    product6 = inverted.swapaxes(-1, -2) @ np.ascontiguousarray(k * down[..., None])
    product7 = inverted.swapaxes(-1, -2) @ ((product3 * between3).swapaxes(-1, -2) @ scaled3)
    S_start_T = turned(S_start)
    product8 = scaled3 @ S_start_T
    product9 = scaled3.swapaxes(-1, -2) @ np.ascontiguousarray(q * up[..., None])
    dq = scaled4 @ k
    dq += product8 * up[..., None]
    prefix_pull2 = prefix_pull((product8 * q).sum(-1)[..., None], decay)[..., 0]
    dS_at = room(dS, n, n)
    added2_at = [None] * n
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        added2 = product6[:, :, c] @ dS
        added2 += product7[:, :, c]
        dS2 = dS * total[:, :, c][..., None, None] + (added2.swapaxes(-1, -2) @ scaled2[:, :, c]).swapaxes(-1, -2)
        np.add(dS2, product9[:, :, c].swapaxes(-1, -2), out=dS_at[:, :, c])
        added2_at[c] = added2
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    added2_at = np.stack(added2_at, 2)
    dS_T = turned(dS_at)
    product10 = product2 @ dS_T
    suffix_pull2 = suffix_pull((product10 * k).sum(-1)[..., None], decay)[..., 0]
    whole_pull2 = whole_pull((dS_at * S_start).sum((-2, -1))[..., None], decay)[..., 0]
    pairs = np.tril(added2_at @ product2_T, -1)
    product11 = added2_at @ S_start_T
    prefix_pull3 = prefix_pull((product11 * negated).sum(-1)[..., None], decay2)[..., 0]
    scaled5 = pairs * between2
    matrix_pull2 = between_pull(pairs * product, decay2)[..., 0]
    negated = np.ascontiguousarray(negated)
    added3 = scaled5 @ k
    added3 += product11 * up2[..., None]
    added4 = scaled5.swapaxes(-1, -2) @ negated
    added4 += product5
    negated2 = -added3
    summed = (negated2 * k).sum(-1)
    dk = product10 * down[..., None] + added4 + negated2 * scaled[..., None]
    dv = added2_at * beta[..., None]
    dbeta = summed * alpha + (added2_at * v).sum(-1)
    dg = prefix_pull3 + matrix_pull2 + summed * beta * alpha + suffix_pull2 + whole_pull2 + matrix_pull + prefix_pull2
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
