"""Small cases with known answers; `make_golden.py --selftest` runs them."""
import numpy as np
from golden_agreement import agreement, cuts, mid_ranks, spearman, top, top_with_reserve
from golden_dump import Layer
from golden_tokens import EXACT, ORACLES, SCORES, Row, add_row_scores, caote, exact_errors, expected_attention, head_metrics, keydiff
from golden_tokens import rotation, softmax, squared_norm


def near(got, want, relative=1e-12, absolute=1e-14):
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)


def line_of_keys(logits, values, **manifest):
    """One head, one query on the last of len(logits) prompt tokens, with these logits (d = 1, scale 1)."""
    q = np.ones((1, 1, 1))
    k = np.asarray(logits, np.float64)[None, :, None]
    v = np.asarray(values, np.float64).reshape(1, len(logits), -1)
    return Layer(q, k, v, manifest={"scale": 1.0, **manifest})


def closed_forms(row):
    """The closed forms of the four exact errors per row, as written, in extended precision."""
    z, v = row.z.astype(np.longdouble), row.v.astype(np.longdouble)
    e = np.exp(z - z.max())
    a = (e / e.sum())[: row.c]
    o = (e / e.sum()) @ v
    rest = np.array([np.delete(e, p).sum() for p in range(row.c)]) / e.sum()  # 1 - a
    r, v = np.exp(-z[: row.c]), v[: row.c]
    t = a * (r - 1)
    return [
        a**2 * squared_norm(v),
        (t / (1 + t)) ** 2 * squared_norm(v - o),
        (a / (1 + t)) ** 2 * squared_norm(v + (r - 1)[:, None] * o),
        (a / rest) ** 2 * squared_norm(v - o),
    ]


def test_two_equal_tokens():
    """Logits 0 and 0, values 1 and 3: the output is 2, zeroing a key changes nothing."""
    m = head_metrics(line_of_keys([0, 0], [1, 3]), 0, 1)
    near(m["attn"], [0.5, 0.5])
    near(m["value"], [0.25, 2.25])
    near(m["key"], [0, 0])
    near(m["joint"], [0.25, 2.25])
    near(m["caote"], [1, 1])
    near(m["fastcaote"], [1, 1])
    near(m["exact_value"], [0.25, 2.25])
    near(m["exact_key"], [0, 0])
    near(m["exact_joint"], [0.25, 2.25])
    near(m["exact_remove"], [1, 1])


def test_three_tokens():
    """Weights 1/8, 2/8, 5/8 and values 8, 16, 0: the output is 5."""
    row = Row(line_of_keys(np.log([1, 2, 5]), [8, 16, 0]), 0, 2)
    value, key, joint, remove = exact_errors(row)
    near(value, [1, 16, 0])
    near(key, [0, (24 / 7 - 5) ** 2, 5**2], 1e-12, 1e-13)  # token 1: weights 1, 1, 5; token 2: 1, 2, 1 and output 40 / 4
    near(joint, [1, (8 / 7 - 5) ** 2, 5**2])
    near(remove, [(32 / 7 - 5) ** 2, (8 / 6 - 5) ** 2, (40 / 3 - 5) ** 2])


def test_one_token():
    """Removing the only token leaves the output 0."""
    m = head_metrics(line_of_keys([0.7], [3.0]), 0, 1)
    near(m["exact_remove"], [9])
    near(m["exact_value"], [9])
    near(m["exact_key"], [0])
    near(m["caote"], [3])
    near(m["fastcaote"], [0])
    with_sink = exact_errors(Row(line_of_keys([0.0], [4.0], sink_logit=[[0.0]]), 0, 0))
    near(with_sink, [[4], [0], [4], [4]])


def test_hidden_tokens():
    m = head_metrics(line_of_keys([1, 2, 3, 4], [5, 6, 7, 8], sliding_window=2), 0, 1)
    for name in ["attn", "value", "key", "joint", "caote", *EXACT]:
        assert (m[name][:2] == 0).all() and (m[name][2:] > 0).all(), name


def test_sink_near_one():
    """Weight 1 - 1e-9 on the first token, with a positive and with a negative logit."""
    generator = np.random.default_rng(7)
    for shift in (0.0, -40.0):
        z = np.array([np.log(2e9), 0.0, 0.0]) + shift
        row = Row(line_of_keys(z, generator.normal(size=(3, 5)) + 10), 0, 2)
        assert abs(1 - row.a[0] - 1e-9) < 1e-12
        for got, want in zip(exact_errors(row), closed_forms(row)):
            near(got, want.astype(np.float64), 1e-6, 1e-26)
        # The same sink twice as far from 0: v_p - o_i keeps its digits.
        sums = {name: np.zeros(3) for name in SCORES}
        add_row_scores(row, sums)
        others = row.v[1:].mean(axis=0)
        near(sums["key"][0], (row.a[0] * z[0] * 1e-9) ** 2 * squared_norm(row.v[0] - others), 1e-6, 0)
        full, _ = caote(sums["attn"], row.v)
        near(full[0], row.a[0] * np.sqrt(squared_norm(row.v[0] - others)))


def test_closed_forms():
    """Brute force against the closed forms: causal, sliding, capped, with sink logits, not causal, few queries."""
    settings = [{}, {"sliding_window": 5}, {"logit_softcap": 3.0}, {"sink_logit": [[1.0, -2.0, 0.5, 3.0]]}, {"causal": False}]
    generator = np.random.default_rng(1)
    for manifest in settings:
        q, k = 2 * generator.normal(size=(4, 9, 6)), 2 * generator.normal(size=(2, 13, 6))
        layer = Layer(q, k, generator.normal(size=(2, 13, 3)), manifest=manifest, prompt_len=10)
        assert list(layer.window_rows(32)) == [4, 5, 6, 7, 8, 9] and list(layer.future_rows()) == [10, 11, 12]
        for h in range(4):
            for i in range(4, 13):
                row = Row(layer, h, i)
                for got, want in zip(exact_errors(row), closed_forms(row)):
                    near(got, want.astype(np.float64), 1e-9, 1e-13)


def test_taylor_scores():
    """`key` and `joint` are the squared first-order change of the output: a small step of the raw logit shows it."""
    generator = np.random.default_rng(2)
    for cap in (None, 2.0):
        raw, v = generator.normal(size=4), generator.normal(size=(4, 3))

        def output(x):
            return softmax(x if cap is None else cap * np.tanh(x / cap)) @ v

        row = Row(line_of_keys(raw, v, logit_softcap=cap), 0, 3)
        sums = {name: np.zeros(4) for name in SCORES}
        add_row_scores(row, sums)
        for p in range(4):
            step = np.eye(4)[p] * 1e-6
            slope = raw[p] * (output(raw + step) - output(raw - step)) / 2e-6
            near(sums["key"][p], squared_norm(slope), 1e-7)
            near(sums["joint"][p], squared_norm(row.a[p] * v[p] + slope), 1e-7)


def test_group_and_oracles():
    generator = np.random.default_rng(3)
    q, k, v = (generator.normal(size=shape) for shape in [(4, 12, 4), (2, 12, 4), (2, 12, 4)])
    wo = generator.normal(size=(4, 4, 7))
    both = head_metrics(Layer(q, k, v, wo, prompt_len=8), 1, 3)
    parts = [head_metrics(Layer(q[h : h + 1], k[1:], v[1:], wo[h : h + 1], prompt_len=8), 0, 3) for h in (2, 3)]
    for name in ["attn", "joint", "caote", *EXACT, *ORACLES]:
        near(both[name], parts[0][name] + parts[1][name])
    near(both["attn"].sum(), 6)
    # Row l by hand: softmax without the token against softmax with it.
    z = 0.5 * k[1, :9] @ q[2, 8]
    full, without = softmax(z) @ v[1, :9], softmax(np.delete(z, 4)) @ np.delete(v[1, :9], 4, axis=0)
    near(parts[0]["oracle_next"][4], squared_norm(full - without))
    assert "oracle_next" not in head_metrics(Layer(q, k, v, wo), 0, 3)


def test_keydiff():
    near(keydiff(np.array([[2.0, 0], [0, 3.0], [0, 0]])), [-(0.5**0.5), -(0.5**0.5), 0])
    near(keydiff(np.array([[1.0], [-2.0]])), [0, 0])


def test_expected_attention():
    """Both styles un-rotate what they rotate, and equal queries have a score known by hand."""
    for style in ("half", "interleaved"):
        rope = {"style": style, "theta": 100.0, "rotary_dim": 4, "attention_factor": 1.5}
        generator = np.random.default_rng(4)
        k, v = generator.normal(size=(1, 9, 6)), generator.normal(size=(1, 9, 2))
        layer = Layer(np.zeros((1, 9, 6)), k, v, manifest={"rope": rope})
        query = generator.normal(size=6)
        layer.q[0] = [rotation(layer, i) @ query for i in range(9)]
        ahead = np.mean([rotation(layer, 9 + j) @ query for j in range(512)], axis=0)
        want = (softmax(k[0, 4:] @ ahead / 6**0.5) + 0.02) * np.linalg.norm(v[0, 4:], axis=1)
        got = expected_attention(layer, 0)
        near(got[4:], want)
        near(got[:4], want.max())
    # (x, y) -> (x cos - y sin, y cos + x sin) on the pair (0, 2) of four; the pair (0, 1) when interleaved
    quarter = {"inv_freq": [np.pi / 2, 0.0]}
    layer = Layer(np.zeros((1, 1, 4)), np.zeros((1, 1, 4)), np.zeros((1, 1, 1)), manifest={"rope": quarter})
    near(rotation(layer, 1) @ [1, 2, 3, 4], [-3, 2, 1, 4])
    layer.interleaved = True
    near(rotation(layer, 1) @ [1, 2, 3, 4], [-2, 1, 3, 4])


def test_agreement():
    near(mid_ranks(np.array([5, 1, 5, 0])), [2.5, 1, 2.5, 0])
    near(spearman(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])), 0.5)
    assert list(top(np.array([1.0, 3, 3, 2]), 2)) == [1, 2]
    assert cuts(50) == {"40": 40, "1%": 1, "5%": 3, "10%": 5, "20%": 10}
    assert cuts(30) == {"1%": 1, "5%": 2, "10%": 3, "20%": 6}
    figures = agreement(np.array([4.0, 3, 2, 1, 0] * 2), np.array([1.0, 2, 3, 4, 10] * 2), True)
    near(figures["rel_l1"], 36 / 40)  # 3 + 1 + 1 + 3 + 10, twice, of 2 (1 + 2 + 3 + 4 + 10)
    near(figures["recall@20%"], 0)
    near(figures["mass@20%"], 2 / 40)
    assert "recall@40" not in figures


def test_reserve():
    """The last tokens count as found, the reference's own top stays as it is."""
    assert list(top_with_reserve(np.array([9.0, 8, 9, 1, 2, 0]), 4, 2)) == [4, 5, 0, 2]
    assert cuts(50, 3) == {"40": 40, "10%": 5, "20%": 10}
    falling = np.arange(10.0, 0, -1)
    error = np.array([1.0] + 8 * [0] + [3])
    plain, reserved = agreement(falling, error, False), agreement(falling, error, False, 1)
    near([plain["recall@20%"], plain["mass@20%"]], [0.5, 0.25])  # finds 0 and 1 of 0 and 9
    near([reserved["recall@20%"], reserved["mass@20%"]], [1, 1])  # finds 9 and 0
    assert set(reserved) == {"spearman", "recall@20%", "mass@20%"} and reserved["spearman"] == plain["spearman"]


def selftest():
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
        print(f"ok {test.__name__}")
