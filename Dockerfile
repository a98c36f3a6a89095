# Name server, broker and console of rocketcore. Build: docker build -t rocketcore .   Run: docker compose up
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[console,lz4,zstd,tls]"

FROM python:3.13-slim
RUN useradd --system --create-home --home-dir /var/lib/rocketmq --uid 10001 rocketmq
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rocketcore[console,lz4,zstd,tls]" && rm -rf /wheels
# By its number: Kubernetes does not believe a name that it is not root (runAsNonRoot).
USER 10001:10001
WORKDIR /var/lib/rocketmq
VOLUME /var/lib/rocketmq
# The port of --metrics-port is for who scrapes from outside of the container.
ENV ROCKETCORE_METRICS_ADDRESS=0.0.0.0
EXPOSE 9876 10911 10909 5557 5558 9880
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=6 \
    CMD ["python", "-I", "-c", "import urllib.request; urllib.request.build_opener(urllib.request.ProxyHandler({})).open('http://127.0.0.1:5557/readyz', timeout=5)"]
ENTRYPOINT ["rocket"]
CMD ["up", "--store", "/var/lib/rocketmq/store", "--listen", "0.0.0.0", "--port", "9876", "--broker-port", "10911", "--metrics-port", "5557", "--no-console", "--insecure"]
