# ---- rglru: tiles are [B, H, n, *axes] for n chunks; time is the first axis, C tokens


def prepare_0(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (W_r, b_r, Lambda, W_i, b_i) = fixed
    scaled = softplus(Lambda) * -8
    return (W_r, b_r, scaled, W_i, b_i)


def prepare_back_0(C, dims, dtype, fixed, last):
    """What every chunk needs and no token changes."""
    (W_r, b_r, Lambda, W_i, b_i) = fixed
    D = dims["D"]
    softplus2 = softplus(Lambda)
    place_row2 = place_row(np.full((1, 1, 1, C, D), 1, dtype)[..., -1, :], 2, C, last=True)
    sigmoid2 = sigmoid(Lambda)
    return (W_r, b_r, softplus2, W_i, b_i, place_row2, sigmoid2)


def forward_0(inputs, states, constants, n, C, dims, dtype, outputs=True):
    """Outputs and next state of n chunks of C tokens."""
    (x, t) = inputs
    (h,) = states
    (W_r, b_r, scaled, W_i, b_i) = constants
    D = dims["D"]
    # gate a = exp(-c * r * softplus(Λ))
    W_r_T = turned(W_r)
    scaled2 = sigmoid(x @ W_r_T + b_r[..., None, :]) * scaled[..., None, :]
    a = np.exp(scaled2)
    # h[t] = a * h[t-1] + scale * (i * x)
    W_i_T = turned(W_i)
    scaled3 = np.where((t == 1)[..., None], 1, np.sqrt(1 - a * a)) * (sigmoid(x @ W_i_T + b_i[..., None, :]) * x)
    h_at = room(h, n, 0)
    h2_at = slots(h, n, C, D)
    for c in range(n):
        h = h_at[:, :, c]
        h2 = h2_at[:, :, c]
        h2[...] = scan(a[:, :, c], scaled3[:, :, c], h, -2)
        h_at[:, :, c + 1] = h2[..., -1, :]
    h, h_at = h_at[:, :, -1], h_at[:, :, :-1]
    if not outputs:
        return (), (h,), (h_at,)
    return (h2_at,), (h,), (h_at,)


def backward_0(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_0 takes, from those of what it gives."""
    (x, t) = inputs
    (h_start,) = starts
    (dy,) = cotangents
    (dh,) = dstates
    (W_r, b_r, softplus2, W_i, b_i, place_row2, sigmoid2) = constants
    x = packed(x, dtype)
    eq = t == 1
    W_r_T = turned(W_r)
    added = x @ W_r_T + b_r[..., None, :]
    r = sigmoid(added)
    scaled = -8 * r
    a = np.exp(scaled * softplus2[..., None, :])
    sqrt = np.sqrt(1 - a * a)
    scale = np.where(eq[..., None], 1, sqrt)
    W_i_T = turned(W_i)
    added2 = x @ W_i_T + b_i[..., None, :]
    i = sigmoid(added2)
    scaled2 = i * x
    h2 = scan(a, scale * scaled2, h_start, -2)
    scan_back2 = scan_back(a, dy, -2)
    scan_back3 = scan_back(a, place_row2, -2)
    row = scan_back2[..., 0, :]
    row2 = scan_back3[..., 0, :]
    row3 = a[..., 0, :]
    before2 = before(h2, h_start, -2)
    scaled3 = i * sigmoid(-added2)
    ratio = 0.5 / sqrt
    scaled4 = r * sigmoid(-added)
    dh_at = room(dh, n, n)
    for c in reversed(range(n)):
        dh = dh_at[:, :, c + 1]
        np.multiply(row[:, :, c] + row2[:, :, c] * dh, row3[:, :, c], out=dh_at[:, :, c])
    dh, dh_at = dh_at[:, :, 0], dh_at[:, :, 1:]
    added3 = scan_back2 + scan_back3 * dh_at[..., None, :]
    scaled5 = added3 * scale
    scaled6 = scaled5 * x * scaled3
    gradient = pooled(scaled6)
    db_i = gradient.sum(-2)
    gradient2 = pooled(scaled6.swapaxes(-1, -2) @ x)
    where = np.where(eq[..., None], 0, added3 * scaled2)
    negated = -np.where(where == 0, 0, where * ratio)
    da = np.where(negated == 0, 0, negated * a)
    da2 = added3 * before2 + da + da
    where2 = np.where(da2 == 0, 0, da2 * a)
    eq2 = where2 == 0
    gradient3 = pooled(np.where(eq2, 0, where2 * scaled))
    summed = gradient3.sum(-2)
    dLambda = np.where(summed == 0, 0, summed * sigmoid2)
    dr = np.where(eq2, 0, where2 * softplus2[..., None, :]) * -8
    where3 = np.where(dr == 0, 0, dr * scaled4)
    gradient4 = pooled(where3)
    db_r = gradient4.sum(-2)
    gradient5 = pooled(where3.swapaxes(-1, -2) @ x)
    added4 = scaled6 @ W_i
    added4 += where3 @ W_r
    dx = scaled5 * i + added4
    return (dx, None), (gradient5, db_r, dLambda, gradient2, db_i), (), (dh,)


def prepare_token(C, dims, dtype, fixed, last):
    """What a token needs and no token changes."""
    (W_r, b_r, Lambda, W_i, b_i) = fixed
    softplus2 = softplus(Lambda)
    return (W_r, b_r, softplus2, W_i, b_i)


def prepare_back_token(C, dims, dtype, fixed, last):
    """What a token needs and no token changes."""
    (W_r, b_r, Lambda, W_i, b_i) = fixed
    softplus2 = softplus(Lambda)
    sigmoid2 = sigmoid(Lambda)
    return (W_r, b_r, softplus2, W_i, b_i, sigmoid2)


def forward_token(inputs, states, constants, n, C, dims, dtype):
    """Outputs and next state of one token."""
    (x, t) = inputs
    (h,) = states
    (W_r, b_r, softplus2, W_i, b_i) = constants
    h = h[:, :, None]
    # gate a = exp(-c * r * softplus(Λ))
    scaled = -8 * sigmoid((W_r @ x[..., None])[..., 0] + b_r) * softplus2
    a = np.exp(scaled)
    # h[t] = a * h[t-1] + scale * (i * x)
    scaled2 = np.where((t == 1)[..., None], 1, np.sqrt(1 - a * a)) * (sigmoid((W_i @ x[..., None])[..., 0] + b_i) * x)
    scaled2 += a * h
    return (scaled2,), (scaled2[:, :, 0],), ()


def backward_token(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype):
    """The cotangents of what forward_token takes, from those of what it gives."""
    (x, t) = inputs
    (h_start,) = starts
    (dy,) = cotangents
    (dh,) = dstates
    (W_r, b_r, softplus2, W_i, b_i, sigmoid2) = constants
    dh = dh[:, :, None]
    added = (W_r @ x[..., None])[..., 0] + b_r
    r = sigmoid(added)
    scaled = -8 * r
    a = np.exp(scaled * softplus2)
    eq = t == 1
    sqrt = np.sqrt(1 - a * a)
    added2 = (W_i @ x[..., None])[..., 0] + b_i
    i = sigmoid(added2)
    dh2 = dy + dh
    scaled2 = dh2 * np.where(eq[..., None], 1, sqrt)
    scaled3 = scaled2 * x * (i * sigmoid(-added2))
    db_i = pooled(scaled3)
    gradient = pooled(scaled3[..., None] * x[..., None, :])
    where = np.where(eq[..., None], 0, dh2 * (i * x))
    negated = -np.where(where == 0, 0, where * (0.5 / sqrt))
    da = np.where(negated == 0, 0, negated * a)
    dh3 = dh2 * a
    da2 = da + da + dh2 * h_start
    where2 = np.where(da2 == 0, 0, da2 * a)
    eq2 = where2 == 0
    gradient2 = pooled(np.where(eq2, 0, where2 * scaled))
    dLambda = np.where(gradient2 == 0, 0, gradient2 * sigmoid2)
    dr = np.where(eq2, 0, where2 * softplus2) * -8
    where3 = np.where(dr == 0, 0, dr * (r * sigmoid(-added)))
    db_r = pooled(where3)
    gradient3 = pooled(where3[..., None] * x[..., None, :])
    added3 = (scaled3[..., None, :] @ W_i)[..., 0, :]
    added3 += (where3[..., None, :] @ W_r)[..., 0, :]
    dx = scaled2 * i + added3
    return (dx, None), (gradient3, db_r, dLambda, gradient, db_i), (), (dh3[:, :, 0],)
