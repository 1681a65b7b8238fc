{{/*
Scaling on the tasks of the types that are queued or running, as the api counts them. Not on the group's committed lag: one
long task at the head of a partition holds the committed offset back while thousands behind it are done, so the lag says
"thousands to do" where nothing is left, and it says nothing of tasks that wait in the tracker's timers.

One trigger per type, and the largest answer wins: that is the right number, as a replica has its slots for each type.
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
  # The api does not answer: the usual number of replicas, not the last one and not the least.
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
