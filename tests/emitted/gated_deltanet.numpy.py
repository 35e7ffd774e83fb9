# ---- gated_deltanet: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def forward_0(inputs, states, constants, n, C, dims, dtype, outputs=True):
    """Outputs and next state of n chunks of C tokens."""
    (q, g, k, v, beta) = inputs
    (S,) = states
    k = packed(k, dtype)
    v = packed(v, dtype)
    K, V = dims["K"], dims["V"]
    # S[t] = α * (I - β * k @ k.T) @ S[t-1]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    k_T = turned(k)
    between2 = between(decay)
    scaled = k @ k_T
    scaled *= between2
    scaled *= beta[..., None]
    inverted = inverse(scaled)
    product = inverted * beta[..., None, :] @ v
    product2 = inverted * (beta * -up)[..., None, :] @ k
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled3 = k * down[..., None]
    S_at = room(S, n, 0)
    added_at = slots(S, n, C, V)
    for c in range(n):
        S = S_at[:, :, c]
        added = added_at[:, :, c]
        np.matmul(product2[:, :, c], S, out=added)
        added += product[:, :, c]
        np.matmul(scaled3[:, :, c].swapaxes(-1, -2), added, out=S_at[:, :, c + 1])
        S_at[:, :, c + 1] += total[:, :, c][..., None, None] * S
    S, S_at = S_at[:, :, -1], S_at[:, :, :-1]
    if not outputs:
        return (), (S,), (S_at,)
    scaled4 = q @ k_T
    scaled4 *= between2
    added2 = q * up[..., None] @ S_at
    added2 += scaled4 @ added_at
    # o = K**-0.5 * S[t].T @ q
    added2 *= K ** (-0.5)
    return (added2,), (S,), (S_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (q, g, k, v, beta) = inputs
    (S_start,) = starts
    (do,) = cotangents
    (dS,) = dstates
    q = packed(q, dtype)
    k = packed(k, dtype)
    v = packed(v, dtype)
    do = packed(do, dtype)
    K, V = dims["K"], dims["V"]
    decay = levels(g[..., None], log=True, strict=False)
    up = prefix(decay)[..., 0]
    scaled = k * (-beta)[..., None]
    k_T = turned(k)
    product = scaled @ k_T
    between2 = between(decay)
    scaled2 = scaled * up[..., None]
    added = scaled2 @ S_start
    added += v * beta[..., None]
    inverted = inverse(-(product * between2))
    product2 = inverted @ added
    product3 = q @ k_T
    total = whole(decay)[..., 0]
    down = suffix(decay)[..., 0]
    scaled3 = do * K ** (-0.5)
    product2_T = turned(product2)
    product4 = scaled3 @ product2_T
    scaled4 = product4 * between2
    scaled5 = product4 * product3
    product5 = scaled4.swapaxes(-1, -2) @ q
    tile = (inverted * down[..., None]).swapaxes(-1, -2) @ k
    product6 = inverted.swapaxes(-1, -2) @ ((product3 * between2).swapaxes(-1, -2) @ scaled3)
    S_start_T = turned(S_start)
    product7 = scaled3 @ S_start_T
    dS_at = room(dS, n, n)
    np.matmul((q * up[..., None]).swapaxes(-1, -2), scaled3, out=dS_at[:, :, :-1])
    dq = scaled4 @ k
    dq += product7 * up[..., None]
    product8 = np.einsum("...ab,...ab->...a", product7, q)
    added2_at = slots(dS, n, C, V)
    for c in reversed(range(n)):
        dS = dS_at[:, :, c + 1]
        added2 = added2_at[:, :, c]
        np.matmul(tile[:, :, c], dS, out=added2)
        added2 += product6[:, :, c]
        dS2 = scaled2[:, :, c].swapaxes(-1, -2) @ added2
        dS2 += dS * total[:, :, c][..., None, None]
        dS_at[:, :, c] += dS2
    dS, dS_at = dS_at[:, :, 0], dS_at[:, :, 1:]
    dS_T = turned(dS_at)
    product9 = product2 @ dS_T
    dg2 = suffix_pull(np.einsum("...ab,...ab->...a", product9, k)[..., None], decay)[..., 0]
    dg3 = whole_pull(np.einsum("...ab,...ab->...", dS_at, S_start)[..., None], decay)[..., 0]
    pairs = np.tril(added2_at @ product2_T, -1)
    product10 = added2_at @ S_start_T
    scaled6 = pairs * between2
    dg4 = between_pull(scaled5 + pairs * product, decay)[..., 0]
    added3 = scaled6 @ k
    added3 += product10 * up[..., None]
    added4 = scaled6.swapaxes(-1, -2) @ scaled
    added4 += product5
    negated = -added3
    dk = product9 * down[..., None] + added4 + negated * beta[..., None]
    dv = added2_at * beta[..., None]
    dbeta = np.einsum("...ab,...ab->...a", negated, k)
    dbeta += np.einsum("...ab,...ab->...a", added2_at, v)
    added5 = np.einsum("...ab,...ab->...a", product10, scaled)
    added5 += product8
    dg5 = prefix_pull(added5[..., None], decay)[..., 0]
    dg = dg2 + dg3 + dg4 + dg5
    return (dq, dg, dk, dv, dbeta), (), (), (dS,)


def forward_token(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of one token."""
    (q, g, beta, k, v) = inputs
    (S,) = states
    S = S[:, :, None]
    K = dims["K"]
    # gate α = exp(g)
    alpha = np.exp(g)
    product = ((k * (-(beta * alpha))[..., None])[..., None, :] @ S)[..., 0, :]
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
    scaled2 = k * (-scaled)[..., None]
    product = (scaled2[..., None, :] @ S_start)[..., 0, :]
    added = alpha[..., None, None] * S_start + k[..., None] * product[..., None, :]
    scaled3 = beta[..., None] * k
    added += scaled3[..., None] * v[..., None, :]
    scaled4 = do * K ** (-0.5)
    dq = (scaled4[..., None, :] @ added.swapaxes(-1, -2))[..., 0, :]
    dS2 = dS + scaled4[..., None, :] * q[..., None]
    summed = (dS2 * v[..., None, :]).sum(-1)
    dv = (dS2 * scaled3[..., None]).sum(-2)
    dk2 = summed * beta[..., None] + (dS2 * product[..., None, :]).sum(-1)
    summed2 = (dS2 * k[..., None]).sum(-2)
    product2 = (summed2[..., None, :] @ S_start.swapaxes(-1, -2))[..., 0, :]
    negated = -product2
    product3 = np.einsum("...a,...a->...", negated, k)
    dk2 += negated * scaled[..., None]
    dbeta = np.einsum("...a,...a->...", summed, k)
    dbeta += product3 * alpha
    dalpha = np.einsum("...ab,...ab->...", dS2, S_start)
    dalpha += product3 * beta
    dS3 = summed2[..., None, :] * scaled2[..., None] + dS2 * alpha[..., None, None]
    dalpha *= alpha
    return (dq, dalpha, dbeta, dk2, dv), (), (), (dS3[:, :, 0],)


def promised(x, fixed, C, dims, dtype):
    """Where each promise of the spec holds."""
    le = (x["k"] * x["k"]).sum(-1) <= 1
    le2 = x["g"] <= 0
    lt = 0 < x["beta"]
    lt2 = x["beta"] < 1
    return {"p0": le, "p1": le2, "p2": lt, "p3": lt2}
