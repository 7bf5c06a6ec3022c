"""What `ros2 launch --show-args` says of the arguments of the launch files."""

TEXTS = {
    'map_file': 'map made by `kbr map build`, or a name out of map_files',
    'map_files': 'several maps: name=path,name=path; each gets a service ~/load_map/<name>',
    'grow_map': 'add images to the map where the pose is sure but no map image looks alike',
    'grow_into': (
        'folder for maps with added images; empty: beside the map, as in office_grown.h5; of '
        'several robots each has its own folder in it, by default in ~/.ros/kbr_localization/grown'
    ),
    'run': 'COLD run folder or rosbag2 to play',
    'params_file': (
        'parameters of the node, as of a Nav2 file; arguments that are given here override them; '
        'a section without a namespace is meant for the one given here'
    ),
    'namespace': 'namespace of the robot',
    'namespaces': 'namespace of the robot; with commas, of several robots on the same maps',
    'use_sim_time': 'take the time from /clock; empty: as the parameters say',
    'autostart': (
        'configure and activate the node at once; false for a lifecycle manager; empty: as the '
        'parameters say'
    ),
    'map': (
        'occupancy grid (YAML) for the costmap: also start nav2_map_server and '
        'lifecycle_manager_localization, which then leads both nodes'
    ),
    'use_composition': 'known from nav2_bringup: a Python node stays a process of its own',
    'container_name': 'known from nav2_bringup, without a meaning here',
    'use_intra_process_comms': 'known from nav2_bringup, without a meaning here',
    'use_respawn': 'start the node again when it dies',
    'method': 'localization method, see `kbr methods`; empty: as the parameters say',
    'image_topic': 'topic of the camera; compressed images come on <topic>/compressed',
    'image_topics': 'topics of several cameras: front/image,rear/image; empty: image_topic alone',
    'cameras': 'cameras of the run to play, if it has several: front,rear',
    'odom_topic': 'topic of the odometry',
    'image_transport': 'raw or compressed; empty: as the parameters say',
    'log_level': 'debug, info, warn or error',
    'respawn': 'older name of use_respawn',
    'rviz': 'also open RViz with the package view',
    'dds_profile': 'Fast DDS profile for raw images; none: leave DDS as it is',
    'rate': 'speed relative to the recording',
    'loop': 'start over at the end',
    'exit_at_end': 'end everything when the run is over',
    'pose_topic': (
        'topic of the pose in the map, from AMCL, SLAM or motion capture; where nobody knows it '
        'give pose_type:=none, and `kbr map build --poses odometry` makes the map'
    ),
    'folder': 'where the building, its runs and the map are kept',
}
