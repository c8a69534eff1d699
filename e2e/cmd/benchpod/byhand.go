package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// byHandScript makes, formats and mounts $1 volumes of $2 bytes at once, in lvmd's own volume group, and prints
// the microseconds that each took. bash reads the clock itself: to start a program costs an emulated node more
// than what is measured. What was made is taken away again, whatever failed.
const byHandScript = `
one() {
	local start=$EPOCHREALTIME
	lvcreate --quiet --yes --size "$2b" --name "hand$1" carve >/dev/null &&
		mkfs.ext4 -q "/dev/carve/hand$1" && mount "/dev/carve/hand$1" "/run/hand/$1" || return
	local end=$EPOCHREALTIME
	echo $((${end/./} - ${start/./}))
}
names=$(seq "$1")
for i in $names; do mkdir -p "/run/hand/$i"; done
for i in $names; do one "$i" "$2" & done
wait
for i in $names; do umount "/run/hand/$i"; done
lvremove --quiet --yes $(printf 'carve/hand%s ' $names) >/dev/null && rm -r /run/hand`

// byHandRound does by hand, with as many volumes, what Carve does in a round, on nodes that run it.
func byHandRound(ctx context.Context, client *carve.Client, volumes int) (*round, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	nodes := client.Cluster.NodeNames()
	outputs, errs := make([]string, len(nodes)), make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		share := (volumes + len(nodes) - 1 - i) / len(nodes)
		if share == 0 {
			continue
		}
		wg.Go(func() {
			result, err := client.Cluster.Exec(ctx, node, "bash", "-c", byHandScript, "by-hand", strconv.Itoa(share), strconv.FormatInt(volumeBytes, 10))
			if err == nil && result.ExitCode != 0 {
				err = fmt.Errorf("by hand on %s: exit code %d: %s", node, result.ExitCode, result.Stderr)
			}
			outputs[i], errs[i] = result.Stdout, err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r := &round{}
	for text := range strings.FieldsSeq(strings.Join(outputs, "")) {
		took, err := time.ParseDuration(text + "us")
		if err != nil {
			return nil, err
		}
		r.byHand = append(r.byHand, took)
	}
	if len(r.byHand) != volumes {
		return nil, fmt.Errorf("%d of %d volumes were made by hand; the nodes printed %q", len(r.byHand), volumes, outputs)
	}
	return r, nil
}

// mountTimes are what stage and publish took together of each volume of a namespace, by the node plugins' logs.
func mountTimes(ctx context.Context, client *carve.Client, namespace string) (times []time.Duration, err error) {
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := client.ProgramPods(ctx, "app.kubernetes.io/name=carve-node")
	if err != nil {
		return nil, err
	}
	sums := map[string]time.Duration{}
	for _, pod := range pods {
		log, err := client.CoreV1().Pods(carve.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "node"}).Stream(ctx)
		if err != nil {
			return nil, err
		}
		err = addMountTimes(log, sums)
		if err = errors.Join(err, log.Close()); err != nil {
			return nil, fmt.Errorf("the log of %s: %w", pod.Name, err)
		}
	}
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != namespace || v.Spec.CSI == nil {
			continue
		}
		took, mounted := sums[v.Spec.CSI.VolumeHandle]
		if !mounted {
			return nil, fmt.Errorf("no node plugin's log has volume %s", v.Spec.CSI.VolumeHandle)
		}
		times = append(times, took)
	}
	return times, nil
}

// addMountTimes adds, for each volume, the calls to stage and publish in a node plugin's log that succeeded.
func addMountTimes(log io.Reader, sums map[string]time.Duration) error {
	for lines := json.NewDecoder(log); ; {
		var line struct{ Msg, Volume, Duration string }
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if line.Msg != "NodeStageVolume" && line.Msg != "NodePublishVolume" {
			continue
		}
		took, err := time.ParseDuration(line.Duration)
		if err != nil {
			return err
		}
		sums[line.Volume] += took
	}
}
