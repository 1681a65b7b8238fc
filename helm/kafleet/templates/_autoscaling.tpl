{{/*
Scaling on the number of queued and running tasks of the types, as counted by the API, instead of the group's committed lag: one
long task at the head of a partition holds the committed offset back while thousands of tasks behind it are done, so the lag would
count finished tasks.

One trigger per type; the largest result applies, because a replica has its slots for each type.
*/}}
{{- define "kafleet.keda" -}}
{{- $scale := .role.autoscaling -}}
{{- $api := printf "http://%s-api.%s.svc:%v" (include "kafleet.fullname" .root) .root.Release.Namespace .root.Values.api.service.port -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ .name }}
  labels: {{- include "kafleet.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .name }}
  pollingInterval: {{ $scale.pollingInterval }}
  # Never 0: Kafka drops the commits of a group that is empty for a week.
  minReplicaCount: {{ $scale.minReplicas }}
  maxReplicaCount: {{ $scale.maxReplicas }}
  # While the API does not respond: the usual number of replicas, neither the last nor the minimum.
  fallback:
    failureThreshold: 4
    replicas: {{ max $scale.minReplicas (min .role.replicas $scale.maxReplicas) }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown:
          stabilizationWindowSeconds: {{ $scale.scaleDownAfter }}
  triggers:
    {{- range .role.types }}
    - type: metrics-api
      metricType: AverageValue
      metadata:
        url: {{ printf "%s/v1/types/%s/backlog" $api . }}
        valueLocation: backlog
        targetValue: {{ default $.role.slots $scale.backlogPerReplica | int | toString | quote }}
        authMode: bearer
      authenticationRef:
        name: {{ include "kafleet.fullname" $.root }}
    {{- end }}
{{- end -}}

{{- define "kafleet.hpa" -}}
{{- $scale := .role.autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- include "kafleet.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .name }}
  minReplicas: {{ $scale.minReplicas }}
  maxReplicas: {{ $scale.maxReplicas }}
  behavior:
    scaleDown:
      stabilizationWindowSeconds: {{ $scale.scaleDownAfter }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $scale.cpuUtilization }}}
{{- end -}}
