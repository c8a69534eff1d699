// Package podbinder binds Pods for a kube-scheduler that leaves it their volumes: it selects the
// chosen node for the claims that wait for one, waits until all claims are bound, and then binds
// the Pod. It takes the place of VolumeBinding's PreBind, which looks once per second whether
// that is done, and of DefaultBinder.
//
// It owns the order of these steps, and never provisions: provisioners, of any driver, act on
// the annotation of the selected node, and the PV controller binds, as for every scheduler.
//
// Vocabulary:
//
//	open       a claim without a volume and without a selected node
//	static     a PersistentVolume that exists, and that an open claim can have
//	taken back a selected node that the provisioner removed: it could not make the volume
//
// Invariants: a Pod is bound only when each of its claims is bound to a volume that its node can
// use; no claim is changed while another claim of the Pod is known to keep it from the node;
// every step may be repeated; nothing is remembered between calls.
//
// Caller: the program beside kube-scheduler (cmd/controller, bind-pods). It knows neither
// lvmds nor the controller's leader, and goes on while these change.
package podbinder
