// The CSI driver of a node, under the name of Longhorn's. It mounts the share of a volume's share-manager with the options
// of Longhorn's own driver (csi/node_server.go). A VolumeAttachment's metadata has the address of the share.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/mount-utils"
)

const (
	name         = "driver.longhorn.io"
	plugin       = "/var/lib/kubelet/plugins/" + name + "/csi.sock"
	registration = "/var/lib/kubelet/plugins_registry/" + name + "-reg.sock"
	share        = "share" // the key of the metadata
	options      = "vers=4.1,noresvport,timeo=600,retrans=5,softerr"
	patience     = 90 * time.Second // for a mount: less than the kubelet's two minutes
)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	pluginregistration.UnimplementedRegistrationServer
	node, address string
	mounter       mount.Interface
}

func main() {
	d := &driver{node: os.Args[1], address: os.Args[2], mounter: mount.New("")}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	pluginregistration.RegisterRegistrationServer(server, d)
	go serve(server, plugin)
	serve(server, registration)
}

func serve(server *grpc.Server, path string) {
	if err := os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755); err != nil {
		log.Fatal(err)
	}
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

func (d *driver) GetInfo(context.Context, *pluginregistration.InfoRequest) (*pluginregistration.PluginInfo, error) {
	return &pluginregistration.PluginInfo{
		Type: pluginregistration.CSIPlugin, Name: name, Endpoint: plugin, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(_ context.Context, r *pluginregistration.RegistrationStatus) (*pluginregistration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", r.PluginRegistered, r.Error)
	return &pluginregistration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "test"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	stage := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	capability := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: stage}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{capability}}, nil
}

func (d *driver) NodeStageVolume(c context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	source := r.PublishContext[share]
	if err := d.routeFromNode(strings.Split(source, ":")[0]); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, d.mountOnce(c, r.StagingTargetPath, "-t", "nfs", "-o", options, source)
}

func (d *driver) NodePublishVolume(c context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, d.mountOnce(c, r.TargetPath, "--bind", r.StagingTargetPath)
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, d.unmount(r.TargetPath)
}

func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.unmount(r.StagingTargetPath)
}

// routeFromNode gives the node's own connections to a Service the node's address as their source. Without iptables in the
// node's kernel, kube-proxy can't do that: they would have the Service's address, to which no other node replies.
func (d *driver) routeFromNode(service string) error {
	return run("ip", "route", "replace", "local", service, "dev", "kube-ipvs0", "table", "local", "proto", "kernel",
		"scope", "host", "src", d.address)
}

// mountOnce mounts at a path, unless something is mounted there: the kubelet calls again after its restart.
func (d *driver) mountOnce(c context.Context, path string, arguments ...string) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	mounted, err := d.mounter.IsMountPoint(path)
	if err != nil || mounted {
		return err
	}
	seconds := fmt.Sprint(patience.Seconds())
	return run("timeout", append(append([]string{"--kill-after=5", seconds, "mount"}, arguments...), path)...)
}

// unmount doesn't wait for a server that is gone. On an error, the kubelet calls again.
func (d *driver) unmount(path string) error {
	mounted, err := d.mounter.IsMountPoint(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if mounted {
		if err := run("timeout", "--kill-after=5", "20", "umount", path); err != nil {
			log.Print(err)
			if err := run("umount", "--force", "--lazy", path); err != nil {
				return err
			}
		}
	}
	// Not RemoveAll: if something is mounted nevertheless, that would delete the files of the volume.
	return os.Remove(path)
}

func run(program string, arguments ...string) error {
	log.Print(program, arguments)
	if output, err := exec.Command(program, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", program, arguments, err, output)
	}
	return nil
}
