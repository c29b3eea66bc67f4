#!/bin/bash
# Training on two machines of eight GPUs under SLURM: sbatch examples/slurm.sh
# Batch size and precision are those of CONFIG: data.global_batch_size holds for any number of GPUs.
# Submitted again, it goes on where it stopped. run.dir must be on a file system that all machines see.
#SBATCH --job-name=mttl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# Two minutes before the time is over: the step is finished, and a checkpoint saved.
#SBATCH --signal=TERM@120
set -eu

name=${NAME:-nodes}
dir=${RUNS:-runs}
resume=()
if [ -d "$dir/$name" ]; then resume=(--resume); fi

# One process per GPU, on all machines; where one fails, SLURM ends the others too.
exec srun --kill-on-bad-exit=1 python pl_train.py -c "${CONFIG:-crossfit_paper.yaml}+trainer/nodes.yaml" \
    -k trainer.num_nodes="$SLURM_NNODES" trainer.devices="$SLURM_NTASKS_PER_NODE" \
    run.dir="$dir" run.name="$name" "${resume[@]}"
