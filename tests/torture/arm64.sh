#!/bin/bash
# A release for aarch64, made on this machine, installed from an offline image inside an arm64 Debian and judged there
# by its own guard: the slot's daemon starts, is measured and answers. As root, with debootstrap and qemu-user-static.
set -euo pipefail
cd "$(dirname "$0")/../.."
edgekit=$PWD/.venv/bin/edgekit
for program in debootstrap qemu-aarch64-static; do
    command -v $program >/dev/null || { echo "arm64: needs $program; to mend it: apt install debootstrap qemu-user-static"; exit 1; }
done
[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
work=${1:-$(mktemp -d)}
root=$work/root
if [ ! -x "$root/usr/bin/python3" ]; then
    # Unpacked and not configured: the second stage runs thousands of programs under the emulator, and Python needs none.
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,python3-minimal bookworm "$root"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root" 2>/dev/null; done
fi
[ "$(chroot "$root" /usr/bin/python3 -c 'import platform; print(platform.machine())')" = aarch64 ]
export EDGEKIT_HOME=$work/home
printf '[[model]]\nname = "digits"\n' >"$work/edgekit.toml"
.venv/bin/python -m pip wheel -q --no-deps -w "$work/dist" .
"$edgekit" release lock --machine aarch64 --python 3.11 >"$work/board.lock"
# An emulated processor is some hundred times slower than this one while Python starts.
"$edgekit" release create arm64-$$ --config "$work/edgekit.toml" --requirements "$work/board.lock" \
    --wheel "$work"/dist/edgekit_deploy-*.whl --machine aarch64 --python 3.11 --ready 1800 --soak 2
rm -rf "$root/mnt/stick" "$root/opt/edgekit"
"$edgekit" provision --offline-image "$root/mnt/stick" --release arm64-$$ --service none --device arm64
chroot "$root" /usr/bin/python3 /mnt/stick/install.py /opt/edgekit --service none
