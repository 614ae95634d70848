{{/* Name of everything that the operator has. */}}
{{- define "holdfast.operator" -}}
{{- $base := ternary .Release.Name (printf "%s-holdfast" .Release.Name) (contains "holdfast" .Release.Name) -}}
{{- printf "%s-operator" ($base | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "holdfast.operator" .) -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* Nodes belong to no namespace: a Role gives no right to them. */}}
{{- define "holdfast.nodeNotices" -}}
{{- ternary "on" "off" (and .Values.nodeNotices (empty .Values.watchNamespaces)) -}}
{{- end -}}

{{/* Resources of the operator's container, without what is empty. */}}
{{- define "holdfast.resources" -}}
{{- range $name, $value := .Values.resources }}
{{- with $value }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Who may speak to a job's pods beside the job itself: this operator, which also asks whether their nodes
live, and who reads the metrics. Empty: jobs have no NetworkPolicy. */}}
{{- define "holdfast.jobIngress" -}}
{{- if .Values.networkPolicy.jobs -}}
{{- $home := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $operator := dict "matchLabels" (include "holdfast.selector" . | fromYaml) -}}
{{- $scrape := dict "ports" (list (dict "port" "metrics")) -}}
{{- with .Values.networkPolicy.metricsFrom -}}{{- $_ := set $scrape "from" . -}}{{- end -}}
{{- list (dict "from" (list (dict "namespaceSelector" $home "podSelector" $operator))) $scrape | toJson -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.masterPod" -}}
{{- with .Values.master -}}
{{- dict
  "annotations" .podAnnotations
  "labels" .podLabels
  "imagePullSecrets" (default (include "holdfast.pullSecrets" $ | fromYamlArray) .imagePullSecrets)
  "nodeSelector" .nodeSelector
  "tolerations" .tolerations
  "priorityClassName" .priorityClassName
  "resources" .resources
| toJson -}}
{{- end -}}
{{- end -}}

{{/* Whether an object of Prometheus' operator is made: auto is yes where its CRDs are there. */}}
{{- define "holdfast.monitored" -}}
{{- $wanted := index . 0 | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (index . 1)) }}yes{{ end -}}
{{- end -}}

{{/* The chart's own pull secrets, and those that a parent chart gives to all its parts. */}}
{{- define "holdfast.pullSecrets" -}}
{{- concat (.Values.imagePullSecrets | default list) ((.Values.global).imagePullSecrets | default list) | uniq | toYaml -}}
{{- end -}}

{{/* Replicas of the operator are on different nodes and zones, where there are several. */}}
{{- define "holdfast.spread" -}}
{{- if kindIs "slice" .Values.topologySpreadConstraints -}}
{{- toYaml .Values.topologySpreadConstraints -}}
{{- else if gt (int .Values.replicas) 1 -}}
{{- $selector := dict "matchLabels" (include "holdfast.selector" . | fromYaml) -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    {{- toYaml $selector | nindent 4 }}
{{- end -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}
