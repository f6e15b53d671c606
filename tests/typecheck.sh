#!/bin/sh
# mypy --strict over the contract, the store and what rests on them.
#
#     tests/typecheck.sh [PYTHON]
#
# mypy does not read setuptools' package-dir mapping, so it is shown a folder in which the top-level
# folders stand under their import name.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${1:-python}")
case $python in /*) ;; *) python=$(pwd)/$python ;; esac
view=$(mktemp -d)
trap 'rm -rf "$view"' EXIT
mkdir "$view/trainwright"
cp "$root/trainwright/__init__.py" "$view/trainwright/"
for part in flows stages sql; do
    ln -s "$root/$part" "$view/trainwright/$part"
done
cd "$view"
"$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "${MYPY_CACHE_DIR:-$root/.mypy_cache}" \
    trainwright/stages/contract.py trainwright/stages/artifact.py trainwright/stages/lease.py \
    trainwright/stages/fingerprint.py trainwright/stages/gc.py trainwright/stages/progress.py \
    trainwright/stages/tracking.py trainwright/stages/store
