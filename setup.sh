#!/bin/sh
# Makes .venv and installs this project in it with the pinned versions. Does nothing when that is done.
#   TORCH=auto|cpu|cuda   which build of torch; auto: CUDA where there is an NVIDIA GPU
#   PYTHON=python3.12     which Python; otherwise the first on the PATH that suits
set -eu
cd "$(dirname "$0")"
here=$(pwd -P)
stamp=.venv/installed
trap 'exit 130' INT TERM

suits() {  # does Python $1 have a supported version and the module $2?
    "$1" -c "import sys, $2; sys.exit(not (3, 10) <= sys.version_info < (3, 14))" 2>/dev/null
}
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
pinned() { .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt "$@"; }

case ${TORCH:-auto} in
    auto) if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then build=cuda; else build=cpu; fi ;;
    cpu | cuda) build=$TORCH ;;
    *) echo "TORCH=$TORCH is not one of auto, cpu and cuda." >&2; exit 2 ;;
esac

# A .venv that was moved here, whose Python is gone, or whose Python is not the one asked for is made anew.
if ! suits .venv/bin/python pip || ! grep -qF "$here/.venv/" .venv/bin/pip ||
    { [ -n "${PYTHON:-}" ] && [ "$(version "$PYTHON")" != "$(version .venv/bin/python)" ]; }; then
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10} ''; do
        if [ -n "$python" ] && suits "$python" ensurepip; then break; fi
    done
    if [ -z "$python" ]; then
        echo "${PYTHON:-python3} does not suit: tp_teach needs Python 3.10, 3.11, 3.12 or 3.13 with its venv" \
            "module (on Debian and Ubuntu the package python3-venv), named like PYTHON=/usr/bin/python3.12." >&2
        exit 2
    fi
    "$python" -m venv --clear .venv
fi

wanted="$build $(cat setup.sh pyproject.toml constraints.txt | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
rm -f "$stamp"

pinned -q 'pip>=23'
torch=$(sed -n 's/^torch==//p' constraints.txt)
if [ "$build" = cpu ]; then
    # The small build has the local version +cpu; where pip knows none, the plain version has to do.
    pinned "torch==$torch+cpu" 2>/dev/null || {
        echo "pip finds no CPU build of torch here and takes the standard one; README.md says how to change that."
        pinned "torch==$torch"
    }
else
    # Three equals signs do not admit 2.13.0+cpu, two would.
    pinned "torch===$torch" || pinned "torch==$torch"
fi
pinned -e '.[test]'
# Every rank of every launch imports it, and where Python may not keep what it compiled (PYTHONDONTWRITEBYTECODE, as in
# many containers) would compile it each time.
.venv/bin/python -m compileall -q tp_teach
# Without this JupyterLab asks, over the first notebook, whether to fetch news from the network.
mkdir -p .venv/share/jupyter/lab/settings
echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
    >.venv/share/jupyter/lab/settings/overrides.json
echo "$wanted" >"$stamp"
