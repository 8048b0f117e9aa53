#!/usr/bin/env bash
# check_all.sh PROGRAM OUT: the results of PROGRAM, written below the folder OUT, against the independent NumPy scripts here.
set -euo pipefail
kvreplay=$(realpath "$1") out=$(realpath "$2")
cd "$(dirname "$0")"
sample=../../data/samples/pystdlib-lm

/usr/bin/python3 make_golden.py --selftest
"$kvreplay" tokens $sample --out $out/golden-check --precision f64 --force --quiet
/usr/bin/python3 make_golden.py --dump $sample --check $out/golden-check

/usr/bin/python3 golden_evictions.py --selftest
bases=streaming,h2o,tova,snapkv,knorm,keydiff,expected_attention,oracle,oracle_exact
scored=h2o+value,h2o+key,h2o+joint,h2o+fastcaote,tova+caote,snapkv+caote,snapkv+exact_remove
own='score:joint,random,score:keydiff,snapkv+joint[window=16],snapkv[window=64,pool=avg:9],h2o[sinks=4,recent=9]'
evict() { "$kvreplay" evict $sample --precision f64 --force --quiet "$@"; }
evict --out $out/golden-evict --policy "$bases,$scored,$own" --diff paper,official,kvpress --sigma 0.8 --phase prefill,blockwise:128
/usr/bin/python3 golden_evictions.py --dump $sample --check $out/golden-evict
evict --out $out/golden-decode --policy "h2o,tova,snapkv+joint,h2o+caote,keydiff,score:joint,h2o[recent=20],random,random[heads=layer,seed=7]" --phase decode,append-only --layers 0,5
/usr/bin/python3 golden_evictions.py --dump $sample --check $out/golden-decode
evict --out $out/golden-kvpress --policy streaming,h2o,tova,snapkv,knorm,keydiff,expected_attention --semantics kvpress
/usr/bin/python3 kvpress/check_kvpress.py $out/golden-kvpress

/usr/bin/python3 golden_retrieval.py --selftest
reads='top_k,top_p,quest,quest[page=5,sinks=4,recent=9,dense=1],sparq,double_sparsity[r=9]'
evict --out $out/golden-retrieval --policy "$reads" --diff paper,official --sigma 0.8 --layers 0,5
/usr/bin/python3 golden_retrieval.py --dump $sample --check $out/golden-retrieval

/usr/bin/python3 golden_compensation.py --selftest
evict --out $out/golden-compensation --policy snapkv,keydiff,leverage,greedy_leverage --sigma 0.8 --layers 0,5 --compensate none,mass,values,fit,mean
/usr/bin/python3 golden_compensation.py --dump $sample --layers 0,5 --check $out/golden-compensation

/usr/bin/python3 golden_loss.py --selftest
rm -rf $out/golden-gradients
"$kvreplay" synth $out/golden-gradients --layers 2 --prompt 120 --decode 20 --gradients 6 --quiet
"$kvreplay" tokens $out/golden-gradients --out $out/golden-losses --precision f64 --force --quiet
/usr/bin/python3 make_golden.py --dump $out/golden-gradients --check $out/golden-losses
"$kvreplay" evict $out/golden-gradients --out $out/golden-evict-losses --precision f64 --force --quiet --phase prefill,decode \
  --policy streaming,h2o,tova,snapkv,h2o+joint,oracle
/usr/bin/python3 golden_evictions.py --dump $out/golden-gradients --check $out/golden-evict-losses

/usr/bin/python3 golden_comparisons.py --selftest
rm -rf $out/golden-prompts && mkdir -p $out/golden-prompts
for seed in 1 2 3 4; do
  "$kvreplay" synth $out/golden-prompts/$seed --seed $seed --layers 2 --prompt $((100 + 20 * seed)) --decode 8 --quiet
done
"$kvreplay" analyze $out/golden-prompts/? --out $out/golden-comparisons --force --quiet
/usr/bin/python3 golden_comparisons.py $out/golden-comparisons

/usr/bin/python3 golden_channels.py --selftest
for semantics in paper official kvpress; do
  "$kvreplay" channels $sample --out $out/golden-channels-$semantics --precision f64 --force --quiet \
    --semantics $semantics --method magnitude,think,iap,exchange,output,rope_pairs,convex,exchange+output --protect $([ $semantics = kvpress ] && echo 5:15 || echo off)
done
"$kvreplay" channels $sample --out $out/golden-think --force --quiet --semantics kvpress --method think
evict --out $out/golden-levers --policy none,snapkv,keydiff --channels iap:0.5 --bits 4 --group 24 --residual 16
evict --out $out/golden-levers-output --policy h2o+joint --channels output:0.4 --bits 2
/usr/bin/python3 golden_channels.py --check $out/golden-channels-{paper,official,kvpress} $out/golden-levers{,-output}
/usr/bin/python3 kvpress/check_think.py $out/golden-think $out/golden-channels-official
