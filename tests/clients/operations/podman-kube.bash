### play kube
# says: said by kube
# says: 7
mine
cat >pod.yaml <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $C}
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - name: one
    image: $IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo said by \$WHO; cat /v/f; exit 7"]
    env: [{name: WHO, value: kube}]
    securityContext: {readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, hostPath: {path: $PWD, type: Directory}}]
YAML
echo a file >f
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
kube pod.yaml
cli wait $C-one
cli logs $C-one
cli play kube --down pod.yaml >/dev/null
cli pod exists $C || echo down

### play kube: two containers, an init container, volumes they share
# says: one: first second
# says: two: first second
# says: read-only
# says: 3 0
# says: down
mine
cat >pod.yaml <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $C}
spec:
  restartPolicy: Never
  hostNetwork: true
  initContainers:
  - name: zero
    image: $IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo -n first >/shared/f"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: one
    image: $IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo ' second' >>/shared/f; echo one: \$(cat /shared/f); touch /shared/done; exit 3"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: two
    image: $IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "until [ -e /seen/done ]; do sleep .1; done; echo two: \$(cat /seen/f); touch /seen/x 2>/dev/null || echo read-only; ls /kept"]
    volumeMounts: [{name: shared, mountPath: /seen, readOnly: true}, {name: kept, mountPath: /kept}]
  volumes:
  - {name: shared, hostPath: {path: $PWD/shared, type: DirectoryOrCreate}}
  - {name: kept, persistentVolumeClaim: {claimName: $C}}
YAML
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; podman volume rm -f $C >/dev/null 2>&1; finish' EXIT
kube pod.yaml
echo $(cli wait $C-one $C-two)
cli logs $C-one
cli logs $C-two
cli play kube --down pod.yaml >/dev/null
cli pod exists $C || echo down

### play kube: replaced, as another user
# says: Running
# says: v1 1000 1001
# says: NoNewPrivs:\t1
# says: v2
mine
version() {
  cat >pod.yaml <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $C}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: one
    image: $IMAGE
    imagePullPolicy: Never
    command: [sleep, "1000"]
    env: [{name: VERSION, value: $1}]
    securityContext: {runAsUser: 1000, runAsGroup: 1001, allowPrivilegeEscalation: false}
YAML
  kube "${@:2}" pod.yaml
}
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
version v1
cli pod ps --filter name=$C --format '{{.Status}}'
cli exec $C-one sh -c 'echo $VERSION $(id -u) $(id -g); grep NoNewPrivs /proc/self/status'
version v2 --replace
cli exec $C-one sh -c 'echo $VERSION'
cli play kube --down pod.yaml >/dev/null
