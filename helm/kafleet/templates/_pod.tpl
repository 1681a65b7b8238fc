{{/*
Pod template of every role. Takes root, role (its values), component, worker (for workers), types (those that it serves; empty:
all), args, config (name of the ConfigMap), account, and optionally port (its name and its section in the configuration), grace
(seconds), preStop (seconds), restart (the restart policy), reap (true if handlers start programs), env (further variables).
*/}}
{{- define "kafleet.podTemplate" -}}
{{- $pod := mergeOverwrite (deepCopy .root.Values.pod) (.role.pod | default dict) -}}
{{- $redisTls := and .root.Values.redis.tlsSecret (has .component (list "tracker" "api" "doctor")) -}}
metadata:
  labels:
    {{- include "kafleet.selector" . | nindent 4 }}
    {{- with .port }}
    kafleet/metrics: {{ ternary "api" "ops" (eq .name "http") }}
    {{- end }}
    {{- with $pod.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # Replaces the pods when the configuration changes, except for changes that a running role takes over.
    kafleet/config: {{ if .port }}{{ include "kafleet.restartHash" .root }}{{ else }}{{ include "kafleet.configData" .root | sha256sum }}{{ end }}
    {{- with $pod.annotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with .grace }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  {{- if .reap }}
  # The pause container is process 1 and reaps orphaned processes of `exec` programs. `kafleet reload` reaches the worker.
  shareProcessNamespace: true
  {{- end }}
  # By default without a user id: the image sets a numeric one, and another image or the cluster may set its own.
  securityContext:
    runAsNonRoot: true
    seccompProfile: {type: RuntimeDefault}
    {{- with $pod.securityContext }}{{ toYaml . | nindent 4 }}{{ end }}
  containers:
    - name: {{ .component }}
      image: {{ include "kafleet.image" . | quote }}
      imagePullPolicy: {{ include "kafleet.pullPolicy" . }}
      args: {{- toYaml .args | nindent 8 }}
      env: {{- include "kafleet.env" (merge (dict "pod" $pod) .) | nindent 8 }}
      {{- with .port }}
      ports:
        - {name: {{ .name }}, containerPort: {{ include "kafleet.port" (dict "root" $.root "section" .section) }}, protocol: TCP}
      {{- include "kafleet.probes" .name | nindent 6 }}
      {{- end }}
      {{- with .preStop }}
      lifecycle:
        preStop: {sleep: {seconds: {{ . }}}}
      {{- end }}
      resources: {{- toYaml .role.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/kafleet, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if $redisTls }}
        - {name: redis-tls, mountPath: /etc/redis-tls, readOnly: true}
        {{- end }}
        {{- with $pod.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: config
      configMap:
        name: {{ .config }}
        items:
          - {key: kafleet.toml, path: kafleet.toml}
          {{- range $path, $_ := .root.Values.configFiles }}
          - {key: {{ $path | replace "/" "." | quote }}, path: {{ $path | quote }}}
          {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: {{ $pod.tmpSizeLimit }}}
    {{- if $redisTls }}
    - name: redis-tls
      secret: {secretName: {{ .root.Values.redis.tlsSecret }}}
    {{- end }}
    {{- with $pod.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- if .port }}
  {{- with $pod.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - labelSelector:
        matchLabels: {{- include "kafleet.selector" $ | nindent 10 }}
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- with $pod.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
{{- end -}}

{{- define "kafleet.env" -}}
{{- include "kafleet.refuseUnknownVariables" . -}}
- {name: KAFLEET_CONFIG, value: /etc/kafleet/kafleet.toml}
{{- $secret := .root.Values.existingSecret -}}
{{- range $variable, $value := dict "KAFLEET_BROKERS" .root.Values.kafka.brokers "KAFLEET_REDIS" .root.Values.redis.url }}
{{- if and $value (not (hasKey $secret.keys $variable)) }}
- {name: {{ $variable }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- range $variable, $key := include "kafleet.secretKeys" . | fromJson }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef: {name: {{ $secret.name }}, key: {{ $key }}}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- with .pod.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Live: the process responds. Ready: it has its partitions, Kafka and Redis. A pod that waits for Kafka is not killed. */}}
{{- define "kafleet.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* At most one pod is evicted at a time. `minAvailable` with a single replica would block every node drain. */}}
{{- define "kafleet.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "kafleet.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "kafleet.selector" . | nindent 6 }}
{{- end -}}
