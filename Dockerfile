# Name server and broker of rocketcore. Build: docker build -t rocketcore .   Run: docker compose up
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[lz4,zstd,tls]"

FROM python:3.13-slim
RUN useradd --system --create-home --home-dir /var/lib/rocketmq --uid 10001 rocketmq
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rocketcore[lz4,zstd,tls]" && rm -rf /wheels
USER rocketmq
WORKDIR /var/lib/rocketmq
VOLUME /var/lib/rocketmq
EXPOSE 9876 10911 10909 5557 5558
STOPSIGNAL SIGTERM
ENTRYPOINT ["rocket"]
CMD ["up", "--store", "/var/lib/rocketmq/store", "--listen", "0.0.0.0", "--port", "9876", "--broker-port", "10911", "--insecure"]
