# docker build -t lab . && docker run --rm -it lab make demo
# With a GPU: docker run --gpus all ... ; results stay with: mkdir build, and -v "$PWD/build:/lab/build"
FROM python:3.12-slim

# git names the commit of a training, make runs the commands, a compiler is for kernels of torch and Triton.
RUN apt-get update && apt-get install --yes --no-install-recommends git make gcc g++ && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home lab && mkdir /lab && chown lab /lab
USER lab
WORKDIR /lab

# The environment first: it is built again only where the locks change.
COPY --chown=lab requirements.lock pyproject.toml Makefile ./
COPY --chown=lab pipeline ./pipeline
RUN make setup

COPY --chown=lab . .
CMD ["make", "help"]
