### CDI: a device of the request
# needs: containerd-1.7
# says: stdout F one crw-rw-rw- 1, 8 from a CDI file
device_files
run_ CDI_devices:='[{"name":"'$KIND'=one"}]' -- sh -c "$SEE"

### CDI: a device of an annotation
# needs: containerd-1.7
# says: stdout F one crw-rw-rw- 1, 8 from a CDI file
device_files
run_ annotations:='{"cdi.k8s.io/test":"'$KIND'=one"}' -- sh -c "$SEE"

### CDI: two devices, and the same one asked for twice
# needs: containerd-1.7
# says: stdout F one crw-rw-rw- 1, 8 from a CDI file
# says: stdout F crw-rw-rw- 1, 5
device_files
run_ CDI_devices:='[{"name":"'$KIND'=one"},{"name":"'$KIND'=two"}]' annotations:='{"cdi.k8s.io/test":"'$KIND'=one"}' -- \
  sh -c "$SEE"'; ls -l /dev/two | tr -s " " | cut -d" " -f1,5,6'

### CDI: a device that is not there
# needs: containerd-1.7
# says: .*unresolvable CDI devices.*=nine.*
device_files
pod
fails 1 box c CDI_devices:='[{"name":"'$KIND'=nine"}]' -- true 2>&1
