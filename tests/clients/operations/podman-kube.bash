### play kube: two containers, an init container, volumes they share
# alone natively: runc 1.1 of Debian 12 cannot open /dev/null in Podman's infra container here
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
cli play kube pod.yaml >/dev/null
echo $(cli wait $C-one $C-two)
cli logs $C-one
cli logs $C-two
cli play kube --down pod.yaml >/dev/null
cli pod exists $C || echo down

### play kube: replaced, as another user
# alone natively: runc 1.1 of Debian 12 cannot open /dev/null in Podman's infra container here
# says: Running
# says: v1 1000 1001
# says: NoNewPrivs:\t1
# says: v2
mine
kube() {
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
  cli play kube "${@:2}" pod.yaml >/dev/null
}
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
kube v1
cli pod ps --filter name=$C --format '{{.Status}}'
cli exec $C-one sh -c 'echo $VERSION $(id -u) $(id -g); grep NoNewPrivs /proc/self/status'
kube v2 --replace
cli exec $C-one sh -c 'echo $VERSION'
cli play kube --down pod.yaml >/dev/null
