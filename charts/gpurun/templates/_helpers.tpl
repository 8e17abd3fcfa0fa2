{{- define "gpurun.labels" -}}
app.kubernetes.io/name: gpurun
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* (list . "device-plugin"): what the DaemonSet and its pods have in common. */ -}}
{{- define "gpurun.selector" -}}
app.kubernetes.io/name: gpurun
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpurun.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "gpurun.hookPath" -}}
{{- if .Values.hookPath -}}
{{ .Values.hookPath }}
{{- else if .Values.installer.enabled -}}
{{ .Values.installer.directory }}/bin/gpurun
{{- else -}}
/usr/bin/gpurun
{{- end }}
{{- end }}

{{- define "gpurun.driverRoot" -}}
{{- with .Values.driverRoot }}- --driver-root={{ . }}{{ end }}
{{- end }}

{{- define "gpurun.vendors" -}}
{{- with .Values.vendors }}- --vendors={{ join "," . }}{{ end }}
{{- end }}

{{- /* Whether the device plugin has configuration files; the labels say what they share. */ -}}
{{- define "gpurun.hasConfig" -}}
{{- if and .Values.devicePlugin.enabled .Values.devicePlugin.config }}yes{{ end }}
{{- end }}
{{- define "gpurun.configOptions" -}}
{{- if include "gpurun.hasConfig" . -}}
- --config-dir=/config
{{- with .Values.devicePlugin.defaultConfig }}
- --default-config={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpurun.draVersion" -}}
{{- if semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version -}} resource.k8s.io/v1 {{- else -}} resource.k8s.io/v1beta2 {{- end }}
{{- end }}

{{- /* (list . "device-plugin"): a service account of the part's own. */ -}}
{{- define "gpurun.account" -}}
{{- $ := index . 0 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $.Release.Name }}-{{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  labels: {{- include "gpurun.labels" $ | nindent 4 }}
{{- end }}

{{- /* (list . "device-plugin" RULES): the part's account may do that in the whole cluster, and no more. */ -}}
{{- define "gpurun.role" -}}
{{- $ := index . 0 -}}
{{- $name := printf "%s-%s" $.Release.Name (index . 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- include "gpurun.labels" $ | nindent 4 }}
rules: {{- index . 2 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "gpurun.labels" $ | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $.Release.Namespace }}}
{{- end }}

{{- /* (list . "device-plugin" TOKEN SPEC): the part on every node; SPEC is what it has beside the common part. */ -}}
{{- define "gpurun.daemonset" -}}
{{- $ := index . 0 -}}
{{- $part := index . 1 -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ $.Release.Name }}-{{ $part }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "gpurun.labels" $ | nindent 4 }}
    app.kubernetes.io/component: {{ $part }}
spec:
  selector:
    matchLabels: {{- include "gpurun.selector" (list $ $part) | nindent 6 }}
  updateStrategy: {type: RollingUpdate}
  template:
    metadata:
      labels:
        {{- include "gpurun.selector" (list $ $part) | nindent 8 }}
        {{- with $.Values.podLabels }}{{ toYaml . | nindent 8 }}{{- end }}
      {{- with $.Values.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $.Release.Name }}-{{ $part }}
      automountServiceAccountToken: {{ index . 2 }}
      {{- with $.Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      priorityClassName: {{ $.Values.priorityClassName }}
      {{- with $.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and $.Values.migManager.enabled (has $part (list "device-plugin" "dra-driver" "labels" "metrics")) }}
      # They have the GPUs open: they leave while the MIG manager divides these.
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: [{key: nvidia.com/gpurun.paused, operator: DoesNotExist}]
      {{- end }}
      {{- with $.Values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- index . 3 | nindent 6 }}
{{- end }}

{{- /* (list . "device-plugin"): whether the part only looks at GPUs and runs without privileges ("yes", or empty): as the
site says, else where gpurun becomes a runtime of the node and can let it open what it needs. */ -}}
{{- define "gpurun.looks" -}}
{{- $ := index . 0 -}}
{{- $root := $.Values.driverRoot | default "/" -}}
{{- if eq (index . 1) "dra-driver" -}}
{{- else if kindIs "bool" $.Values.privileged -}}
{{- if not $.Values.privileged -}}
{{- if not $.Values.runtimeClass.enabled }}{{ fail "privileged: false needs runtimeClass.enabled: gpurun gives the pods their devices" }}{{ end -}}
{{- if ne $root "/" }}{{ fail "privileged: false needs driverRoot /: gpurun looks for the driver there" }}{{ end -}}
yes
{{- end -}}
{{- else -}}
{{- $runs := and $.Values.runtimeClass.enabled $.Values.installer.enabled (ne $.Values.installer.engine "none") -}}
{{- $plain := and (eq $root "/") (eq ($.Values.devicePlugin.migStrategy | default "none") "none") -}}
{{- $words := ternary "nvidiaDriverRoot|migStrategy|mps" "nvidiaDriverRoot|migStrategy" (eq (index . 1) "device-plugin") -}}
{{- $said := and (include "gpurun.hasConfig" $) (regexMatch (printf "(%s)[\\\\\"' ]*:" $words) (toYaml $.Values.devicePlugin.config)) -}}
{{- if and $runs $plain (not $said) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{- /* (list . "device-plugin"): the beginning of its container, up to the environment; "looks" as the third: it only looks at
GPUs. */ -}}
{{- define "gpurun.container" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 }}
image: {{ include "gpurun.image" $ | quote }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
{{- with $.Values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $looks := and (eq (len .) 3) (eq (include "gpurun.looks" .) "yes") }}
{{- if $looks }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- else }}
securityContext: {privileged: true, readOnlyRootFilesystem: true}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
env:
  {{- if $looks }}
  - {name: NVIDIA_VISIBLE_DEVICES, value: all}
  {{- if or (not $.Values.vendors) (has "amd" $.Values.vendors) }}
  - {name: AMD_VISIBLE_DEVICES, value: all}
  {{- end }}
  - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
  - {name: GPURUN_GPU_OPTIONAL, value: "true"}
  {{- end }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{- /* What --health-listen serves: a part is started again when it is silent, and ready when it does its work. */ -}}
{{- define "gpurun.probes" -}}
ports:
  - {name: health, containerPort: 8080, protocol: TCP}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  initialDelaySeconds: 30
  periodSeconds: 30
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- /* The runtime of a pod that only looks at GPUs. */ -}}
{{- define "gpurun.looksBy" -}}
{{- if eq (include "gpurun.looks" .) "yes" }}
runtimeClassName: {{ (index . 0).Values.runtimeClass.name }}
{{- end }}
{{- end }}

{{- /* (list . "device-plugin"): the node's own tree, read only, and its devices, where gpurun does not give the part its own. */ -}}
{{- define "gpurun.hostMounts" -}}
- {name: host, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
{{- if ne (include "gpurun.looks" .) "yes" }}
- {name: dev, mountPath: /dev}
{{- end }}
{{- end }}
{{- define "gpurun.hostVolumes" -}}
- {name: host, hostPath: {path: /, type: Directory}}
{{- if ne (include "gpurun.looks" .) "yes" }}
- {name: dev, hostPath: {path: /dev, type: Directory}}
{{- end }}
{{- end }}

{{- /* (list . "labels" RULES EXPRESSION [MORE]): a policy that keeps a part to its own node; the expression is the node's
name, MORE are validations besides. */ -}}
{{- define "gpurun.ownNode" -}}
{{- $ := index . 0 -}}
{{- $name := printf "%s-%s-own-node" $.Release.Name (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "gpurun.labels" $ | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: {{- index . 2 | nindent 6 }}
  matchConditions:
    - name: by-this-account
      expression: request.userInfo.username == "system:serviceaccount:{{ $.Release.Namespace }}:{{ $.Release.Name }}-{{ index . 1 }}"
  variables:
    - name: caller
      expression: request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
    - name: node
      expression: {{ index . 3 | quote }}
  validations:
    - expression: variables.caller != ''
      reason: Forbidden
      message: the token of this service account is not bound to a pod on a node
    - expression: variables.caller == variables.node
      reason: Forbidden
      messageExpression: "'a pod on node ' + variables.caller + ' may not change what is of node ' + variables.node"
    {{- if gt (len .) 4 }}{{ index . 4 | nindent 4 }}{{ end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels: {{- include "gpurun.labels" $ | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}

{{- /* Of a node, only labels of GPUs may be changed: no taint, no other label, no annotation. */ -}}
{{- define "gpurun.onlyLabels" -}}
{{- $gpus := "['nvidia.com/', 'amd.com/gpu.', 'beta.amd.com/gpu.', 'gpu.intel.com/'].exists(p, name.startsWith(p))" -}}
- expression: >-
    object.metadata.?labels.orValue({}).all(name, {{ $gpus }} ||
    (name in oldObject.metadata.?labels.orValue({}) && oldObject.metadata.labels[name] == object.metadata.labels[name])) &&
    oldObject.metadata.?labels.orValue({}).all(name, {{ $gpus }} ||
    name in object.metadata.?labels.orValue({}))
  reason: Forbidden
  message: this service account may change labels of a node that begin with nvidia.com/, amd.com/gpu., beta.amd.com/gpu. or gpu.intel.com/, and no others
- expression: >-
    object.spec == oldObject.spec &&
    object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({}) &&
    object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]) &&
    object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
  reason: Forbidden
  message: this service account may change labels of a node, and nothing else of it
{{- end }}
