#!/bin/bash
# Training on several machines under torchrun: run this on each of them, with the number of the machine
# from 0, how many there are, and the address of the first one:
#
#     examples/torchrun.sh 0 2 node0        on node0
#     examples/torchrun.sh 1 2 node0        on node1
#
# More arguments go to the command, such as --resume. GPUS=0 tries it without GPUs, in two processes.
set -eu

number=$1 machines=$2 first=$3
shift 3
gpus=${GPUS:-8}
processes=$gpus
settings=(trainer.num_nodes="$machines")
if [ "$gpus" = 0 ]; then
    processes=2
    settings+=(trainer.accelerator=cpu)
fi

exec torchrun --nnodes="$machines" --node-rank="$number" --nproc-per-node="$processes" \
    --master-addr="$first" --master-port="${PORT:-29500}" \
    pl_train.py -c "${CONFIG:-crossfit.yaml}+trainer/nodes.yaml" "$@" \
    -k "${settings[@]}" trainer.devices="$processes" run.name="${NAME:-nodes}"
