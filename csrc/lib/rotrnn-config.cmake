# find_package(rotrnn) defines rotrnn::rotrnn, the shared library, and rotrnn::static.
get_filename_component(rotrnn_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET rotrnn::rotrnn)
  add_library(rotrnn::rotrnn SHARED IMPORTED)
  set_target_properties(rotrnn::rotrnn PROPERTIES
    IMPORTED_LOCATION "${rotrnn_prefix}/lib/librotrnn.so"
    INTERFACE_INCLUDE_DIRECTORIES "${rotrnn_prefix}/include")
  add_library(rotrnn::static STATIC IMPORTED)
  set_target_properties(rotrnn::static PROPERTIES
    IMPORTED_LOCATION "${rotrnn_prefix}/lib/librotrnn.a"
    INTERFACE_INCLUDE_DIRECTORIES "${rotrnn_prefix}/include"
    INTERFACE_LINK_LIBRARIES m)
endif()
